"""Optimus (EuroSys 2018), section 4.1: one unit each, then whoever gains most from the next. Pure.

With true remaining times it is the "Optimus+Oracle" that Pollux (OSDI 2021) is compared with there.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from experiments.comparison_policies.allotment import Allotment, AllotmentRequest, next_count


def optimus(jobs: Sequence[AllotmentRequest], gpus: int, now: float) -> Allotment:
    """The smallest count for each in the order of submission, then step by step by gain per GPU."""
    given: dict[str, int] = {}
    for job in jobs:
        if job.counts[0] <= gpus:
            given[job.id] = job.counts[0]
            gpus -= job.counts[0]
    by_id = {job.id: job for job in jobs if job.id in given}
    # Of equal gains the first submitted, as there.
    gains = [(-_gain(job, given[job.id]), place, job.id) for place, job in enumerate(by_id.values())]
    heapify(gains)
    while gains and gains[0][0] < 0:
        _, place, job_id = heappop(gains)
        job = by_id[job_id]
        bigger = next_count(job, given[job_id])
        if bigger is not None and bigger - given[job_id] <= gpus:
            gpus -= bigger - given[job_id]
            given[job_id] = bigger
            heappush(gains, (-_gain(job, bigger), place, job_id))
    # The fewest first, so that they are not torn apart by placing the large ones.
    return dict(sorted(given.items(), key=lambda item: item[1]))


def _gain(job: AllotmentRequest, count: int) -> float:
    """Seconds saved for each GPU of the next step; 0 if there is none."""
    bigger = next_count(job, count)
    return 0.0 if bigger is None else (job.seconds(count) - job.seconds(bigger)) / (bigger - count)
