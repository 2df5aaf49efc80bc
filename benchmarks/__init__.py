"""Benchmarks of `make bench`: each module measures one goal and prints both sides of it (README, "Benchmarks")."""
