"""Measures and limits the resources of a pod or node: GPUs, usage, CPU."""
