"""Numbers for names: what the arrays of `search.py` stand for, and what depends on names alone.

Kept from one snapshot of a tick to the next, since job types, GPU types and counts stay the same. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import Job

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def removable_counts(job: Job, settings: Settings) -> list[int]:
    """How many GPUs the job can give away, ascending, so that it keeps an allowed count (G2)."""
    gives = [job.num_gpus - keeps for keeps in reversed(job.optional) if keeps < job.num_gpus]
    if settings.removal_range == "printed":
        return [g for g in gives if job.optional[0] <= g <= job.optional[-1]]
    return gives


class Numbering(dict[Any, int]):
    """Numbers names in the order in which they are first asked for."""

    def __missing__(self, name: Any) -> int:
        self[name] = len(self)
        return self[name]


class NameIndex:
    """What depends on names alone; shared by a table and those that come of it."""

    def __init__(self, profiles: Profiles, settings: Settings) -> None:
        self._profiles, self._settings = profiles, settings
        self.types = Numbering()  # of (job type, hosts)
        self.kinds = Numbering()  # of GPU types
        self.counts = Numbering()
        self.allowed = dict[tuple[str | None, str | None], Ints]()  # nodes by (GPU type, name) that a job must have
        self._shapes = Numbering()  # of (allowed counts, present count)
        self._gives, self._larger = list[list[int]](), list[list[int]]()
        self._seconds = np.zeros((0, 0, 0))

    def shape(self, job: Job) -> int:
        known = self._shapes.get((job.optional, job.num_gpus))
        if known is not None:
            return known
        self._gives.append(removable_counts(job, self._settings))
        self._larger.append([n for n in job.optional if n >= job.num_gpus])
        for count in (job.num_gpus, *job.optional):
            self.counts[count]
        return self._shapes[job.optional, job.num_gpus]

    @property
    def gives(self) -> Ints:
        """By shape: amounts that can be given away; 0: no more of them."""
        return _padded(self._gives)

    @property
    def larger(self) -> Ints:
        """By shape: allowed counts that are not below the present one; 0: no more of them."""
        return _padded(self._larger)

    def count_ids(self, counts: Ints) -> Ints:
        """Of counts that some job may have."""
        values = np.fromiter(self.counts, np.intp, len(self.counts))
        order = np.argsort(values)
        return order[np.searchsorted(values, counts, sorter=order)]

    @property
    def seconds(self) -> Floats:
        """Seconds per iteration by GPU type, job type and count; NaN where nothing is known."""
        size = len(self.kinds), len(self.types), len(self.counts)
        if self._seconds.shape != size:
            self._seconds = np.full(size, math.nan)
            for (job_type, hosts), t in self.types.items():
                for kind, k in self.kinds.items():
                    self._fill(k, t, job_type, kind, hosts)
        return self._seconds

    def _fill(self, k: int, t: int, job_type: str, kind: str, hosts: int) -> None:
        if hosts == 1 and (job_type, kind) not in self._profiles.speeds:
            return  # of most job types on most GPU types nothing is known
        for count, c in self.counts.items():
            if count and (speed := self._profiles.speed(job_type, kind, count, hosts)):
                self._seconds[k, t, c] = speed.seconds


def _padded(rows: Sequence[Sequence[int]]) -> Ints:
    matrix = np.zeros((len(rows), max(map(len, rows), default=0)), np.intp)
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = row
    return matrix


def ranks(names: Sequence[str]) -> Ints:
    """In what place each would be if they were sorted; one more, -1 at -1, for no name."""
    found = np.full(len(names) + 1, -1, np.intp)
    found[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return found
