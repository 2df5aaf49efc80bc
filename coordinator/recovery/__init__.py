"""Rebuilds what a lost or outdated store no longer says, from what runs."""
