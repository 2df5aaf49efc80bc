"""Simulates what a live system will do, as it stands and with changes, in the process of who asks."""
