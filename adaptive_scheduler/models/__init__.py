"""Formulas that policies share: predicted times, CPU contention, tardiness, allocatable resources. Pure."""
