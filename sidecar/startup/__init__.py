"""Checks and installation before a training starts."""
