"""What a rival looks at, and what it answers: how many GPUs each job shall have.

The rivals of this package are functions from such a list to counts, whoever carries them out: the event world
(`carrying.py`) or, in `validation`, the fixed rounds of their authors' own simulators. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AllotmentRequest:
    """One unfinished job. `seconds` gives its remaining seconds on one of `counts`."""

    id: str
    submit_s: float
    counts: tuple[int, ...]  # allowed, ascending
    asked: int  # what its user asked for, where the policy does not choose
    has: int  # at present; 0: it waits
    attained: float  # GPU-seconds it has had so far
    seconds: Callable[[int], float]
    due_s: float | None = None  # deadline on the same clock as `submit_s`
    age_s: float = 0.0  # since submission
    restarts: int = 0  # how often it was stopped and started again


Allotment = Mapping[str, int]
"""GPUs by job; one that is left out gets none. Its order is the order in which GPUs are handed out."""

Allot = Callable[[Sequence[AllotmentRequest], int, float], Allotment]
"""From the jobs in the order of their submission, the number of GPUs, and now (seconds)."""


def in_order(jobs: Iterable[AllotmentRequest], gpus: int) -> dict[str, int]:
    """Each the count it asked for, in this order; one that no longer fits is passed over."""
    given: dict[str, int] = {}
    for job in jobs:
        if job.asked <= gpus:
            given[job.id] = job.asked
            gpus -= job.asked
    return given


def next_count(job: AllotmentRequest, count: int) -> int | None:
    """The next larger allowed count."""
    return next((n for n in job.counts if n > count), None)


def speed_up(job: AllotmentRequest, count: int) -> float:
    """How many times faster than on one GPU; each GPU of its smallest count is taken for a full one. 0 of none."""
    seconds = job.seconds(count) if count else 0.0
    smallest = job.counts[0]
    return 0.0 if not count else smallest * job.seconds(smallest) / seconds if seconds else float(count)


def step_gain(job: AllotmentRequest, count: int) -> float:
    """Speed-up of the next step for each GPU that it takes; 0 where there is none."""
    more = next_count(job, count)
    return 0.0 if more is None else (speed_up(job, more) - speed_up(job, count)) / (more - count)
