"""Decides: accepts new jobs, builds the snapshot, and writes each decision into its job for the reconciler.

Also tends Slamls and dependencies, and frees orphaned GPUs. Only the acting coordinator runs it.
"""
