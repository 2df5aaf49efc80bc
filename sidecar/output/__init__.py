"""A training's output: tailing, known formats, progress, lost work."""
