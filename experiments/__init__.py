"""Runs experiments on the simulator: the papers' workloads, traces, comparison policies and validation."""
