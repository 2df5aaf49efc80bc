"""Carries out operations: from the fields of a job and the observed state to the next action."""
