"""Runs beside a training process; imports nothing from the other packages."""
