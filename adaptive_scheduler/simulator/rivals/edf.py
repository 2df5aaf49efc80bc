"""Earliest deadline first, greedy and elastic, as ElasticFlow (ASPLOS 2023, section 6.1) compares with it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adaptive_scheduler.simulator.rivals.allotment import Allotment, Asking


def edf(jobs: Sequence[Asking], gpus: int, now: float) -> Allotment:
    """In the order of deadlines, each the largest allowed count that is left; no deadline comes last."""
    given: dict[str, int] = {}
    for job in sorted(jobs, key=lambda job: math.inf if job.due_s is None else job.due_s):
        count = max((n for n in job.counts if n <= gpus), default=0)
        if count:
            given[job.id] = count
            gpus -= count
    return given
