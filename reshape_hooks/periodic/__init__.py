"""Saves a training without being asked: how often, and beside it."""
