"""Simulates what the system will do, as it stands and with changes, and says how sure that is."""
