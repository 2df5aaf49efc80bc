"""Tells people at a terminal what would happen, simulated in the process of who asks."""
