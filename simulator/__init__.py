"""Event-driven simulator of a cluster: calls `decide()` as the coordinator does, with simulated time, jobs and GPUs."""
