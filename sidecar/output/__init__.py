"""Reads a training's output: tailing, known formats, progress, lost work."""
