"""Reconciles one kind of object per module: launches, Volcano Jobs, Slamls, nodes."""
