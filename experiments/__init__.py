"""Experiments on the simulator: workloads of the papers, traces, comparison policies, validation."""
