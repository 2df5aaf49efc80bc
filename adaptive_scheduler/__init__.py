"""The judgement: pure decisions about who gets how many GPUs."""
