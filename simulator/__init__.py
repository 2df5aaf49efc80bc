"""Simulates a cluster event by event: calls `decide()` as the coordinator does, with simulated time, jobs and GPUs."""
