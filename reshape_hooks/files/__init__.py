"""Keeps the files that a training's script writes itself: what it wrote stays, once, when it is restarted."""
