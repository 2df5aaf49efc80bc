"""Adapters of the other ports: sidecars, clock."""
