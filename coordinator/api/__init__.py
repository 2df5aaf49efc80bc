"""Operations that callers may ask of the coordinator, and answers to Volcano's extender plugin."""
