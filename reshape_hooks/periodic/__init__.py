"""Saves a training periodically, while it continues."""
