"""Shortest remaining time first: preemptive, every job on the count it asked for. Pure.

The classic that minimises mean JCT on one machine (Schrage 1968); with known lengths, as Tiresias (NSDI 2019,
section 2.2) and Voda compare with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_scheduler.simulator.rivals.allotment import Allotment, Asking, in_order


def srtf(jobs: Sequence[Asking], gpus: int, now: float) -> Allotment:
    """By remaining seconds on the count it asked for; one that does not fit is passed over."""
    return in_order(sorted(jobs, key=lambda job: (job.seconds(job.asked), job.submit_s, job.id)), gpus)
