"""Pods: their spec, observed state, resize, log readers, and usage of foreign pods."""
