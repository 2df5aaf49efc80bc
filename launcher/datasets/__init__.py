"""Fetches the data sets of jobs on this machine."""
