"""Knowledge about jobs: speeds, overheads, accuracy curves, finished tasks, growth. Pure; the snapshot holds it."""
