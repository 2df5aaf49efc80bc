"""Operations that the coordinator offers to callers, and answers to Volcano's extender plugin."""
