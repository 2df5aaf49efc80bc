"""Knowledge about jobs and job types: speeds, overheads, accuracy, finished tasks, growth. Pure."""
