"""Reruns the papers: their workloads, traces, comparison policies, live experiments and recordings."""
