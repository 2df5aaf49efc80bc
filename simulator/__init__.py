"""The simulator: a second caller of `decide()`, with its own clock and its own GPUs."""
