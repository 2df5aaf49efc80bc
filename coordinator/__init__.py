"""The only place where the state of jobs and GPUs changes."""
