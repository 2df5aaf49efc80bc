"""Tells why a job waits: the constraint that binds, and the smallest change that would start it now. Pure."""
