"""Runs beside a training process; imports nothing of the other packages."""
