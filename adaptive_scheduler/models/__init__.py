"""Formulas that policies share: predicted times, CPU contention, tardiness, criticality. Pure."""
