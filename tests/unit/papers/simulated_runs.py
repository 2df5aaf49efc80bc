"""Whole workloads simulated by name, as `reshape simulate` does it, without what it prints."""

from __future__ import annotations

from reshape_papers import report
from reshape_papers.run import compare
from reshape_papers.workloads import build, is_drawn


def runs(name, seeds, policies=(), data=None):
    """One after the other; a workload in which nothing is drawn runs once."""
    for seed in range(seeds if is_drawn(name) else 1):
        yield from compare(build(name, seed, data), policies)


def simulate(name, seeds, policies=(), data=None):
    """All runs as one object."""
    done = list(runs(name, seeds, policies, data))
    return report.summary(done[0].workload, [run.row for run in done])
