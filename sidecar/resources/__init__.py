"""Resources of a pod or node: GPUs, usage, CPU limits."""
