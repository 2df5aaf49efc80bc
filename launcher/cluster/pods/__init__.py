"""Builds, reads and resizes pods, runs log readers, and counts what foreign pods request."""
