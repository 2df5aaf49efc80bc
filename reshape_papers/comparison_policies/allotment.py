"""Defines the input and output of a comparison policy: job requests in, GPU counts (an allotment) out.

The policies are functions from requests to counts. The simulator (`allotment_policy.py`) or, in `validation`, models of
the authors' own simulators carry out the counts. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AllotmentRequest:
    """One unfinished job. `seconds` returns its remaining seconds on one of `counts`."""

    id: str
    submit_s: float
    counts: tuple[int, ...]  # allowed, ascending
    asked: int  # requested by its user
    has: int  # current count; 0: it waits
    attained: float  # GPU-seconds received so far
    seconds: Callable[[int], float]
    due_s: float | None = None  # deadline on the same clock as `submit_s`
    age_s: float = 0.0  # since submission
    restarts: int = 0  # number of restarts


Allotment = Mapping[str, int]
"""GPUs by job; missing jobs get none. GPUs are assigned in the order of the mapping."""

Allot = Callable[[Sequence[AllotmentRequest], int, float], Allotment]
"""A policy: from the jobs by submission, the number of GPUs, and the time in seconds."""


def in_order(jobs: Iterable[AllotmentRequest], gpus: int) -> dict[str, int]:
    """Give each job its requested count in this order; skip jobs that no longer fit."""
    given: dict[str, int] = {}
    for job in jobs:
        if job.asked <= gpus:
            given[job.id] = job.asked
            gpus -= job.asked
    return given


def next_count(job: AllotmentRequest, count: int) -> int | None:
    """Return the next larger allowed count."""
    return next((n for n in job.counts if n > count), None)


def speed_up(job: AllotmentRequest, count: int) -> float:
    """Return the speed-up over one GPU, taken as linear up to the smallest count; 0 for no GPU."""
    seconds = job.seconds(count) if count else 0.0
    smallest = job.counts[0]
    return 0.0 if not count else smallest * job.seconds(smallest) / seconds if seconds else float(count)


def step_gain(job: AllotmentRequest, count: int) -> float:
    """Return the gain in speed-up per GPU of the next step; 0 if there is none."""
    more = next_count(job, count)
    return 0.0 if more is None else (speed_up(job, more) - speed_up(job, count)) / (more - count)
