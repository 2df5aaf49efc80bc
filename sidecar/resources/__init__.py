"""Measures and limits resources of a pod or node: GPUs, usage, CPU."""
