"""Pollux's own policy from PyPI beside ours, on one workload."""
