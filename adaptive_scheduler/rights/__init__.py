"""Rights to GPUs: who may have how many now, whose may be taken, and from whom. Pure."""
