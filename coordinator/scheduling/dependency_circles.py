"""Finds jobs that can never start because `depends_on` leads from one of them back to itself. Pure.

Promises: a job is named if and only if it is in such a circle or waits for one, and each search looks at a job once.
`DependencyController` tells it of waiting jobs, `coordinator/api/submissions.py` refuses the job that would close one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise

MAX_NAMED = 5  # jobs of a circle in a sentence

Circle = tuple[str, ...]
"""Ids of jobs, of which each waits for the next one, and the last one for the first. Empty: there is none."""


def closed_by(job_id: str, of: Callable[[str], Collection[str]]) -> Circle:
    """The circle that this job closes; `of`: the ids that a job waits for, also of this one."""
    waits_for_it: dict[str, str] = {}  # the job by which each one was found
    left = [job_id]
    while left:
        one = left.pop()
        for other in of(one):
            if other == job_id:
                return tuple(reversed([*_way_back(one, job_id, waits_for_it)]))
            if other not in waits_for_it:
                waits_for_it[other] = one
                left.append(other)
    return ()


def _way_back(job_id: str, first: str, found_by: Mapping[str, str]) -> Iterator[str]:
    while job_id != first:
        yield job_id
        job_id = found_by[job_id]
    yield first


def standing_still(waiting: Mapping[str, Collection[str]]) -> dict[str, Circle]:
    """Return the circle of each waiting job that is in one or waits for one. `waiting`: what each of them waits for."""
    stuck = _never_freed({job_id: [one for one in on if one in waiting] for job_id, on in waiting.items()})
    found: dict[str, Circle] = {}
    for job_id in stuck:
        path: dict[str, None] = {}  # in order
        one = job_id
        while one not in found and one not in path:
            path[one] = None
            one = stuck[one]
        passed = list(path)
        circle = found[one] if one in found else tuple(passed[passed.index(one) :])
        found |= dict.fromkeys(passed, circle)
    return found


def _never_freed(waiting: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The jobs that are left when all that wait for nothing are taken out again and again, each with one that it waits
    for and that is left, too."""
    behind: dict[str, list[str]] = {}
    for job_id, on in waiting.items():
        for one in set(on):
            behind.setdefault(one, []).append(job_id)
    open_ = {job_id: len(set(on)) for job_id, on in waiting.items()}
    free = [job_id for job_id, count in open_.items() if not count]
    while free:
        gone = free.pop()
        del open_[gone]
        for job_id in behind.get(gone, ()):
            open_[job_id] -= 1
            if not open_[job_id]:
                free.append(job_id)
    return {job_id: next(one for one in waiting[job_id] if one in open_) for job_id in open_}


def describe(circle: Circle) -> str:
    """Part of a sentence, such as `a waits for b, b for a`."""
    ring = [*circle, circle[0]]
    steps = [f"{one} for {other}" for one, other in pairwise(ring)]
    if len(steps) > MAX_NAMED:
        steps = [*steps[: MAX_NAMED - 1], f"and so on through {len(steps) - MAX_NAMED} more", steps[-1]]
    return ", ".join(steps).replace(" for ", " waits for ", 1)
