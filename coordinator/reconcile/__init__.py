"""Carries out operations: derives the next action from the fields of a job and the observed state, and performs it."""
