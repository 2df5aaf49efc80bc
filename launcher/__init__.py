"""Starts and ends the processes of jobs, on this machine or as pods of a cluster."""
