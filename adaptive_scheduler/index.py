"""Maps job types, GPU types and counts to array indices, with tables that depend on them alone.

Shared by the `CostTable`s of one snapshot after the other, as long as profiles and settings are the same. Pure."""

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
    """Return the GPU amounts that the job can give away so that it keeps an allowed count (G2), ascending."""
    gives = [job.num_gpus - keeps for keeps in reversed(job.optional) if keeps < job.num_gpus]
    if settings.removal_range == "printed":
        return [g for g in gives if job.optional[0] <= g <= job.optional[-1]]
    return gives


class Numbering(dict[Any, int]):
    """Assigns consecutive numbers to names in the order of first use."""

    def __missing__(self, name: Any) -> int:
        self[name] = len(self)
        return self[name]


class NameIndex:
    """Indices of names, and the speeds and allowed counts by index."""

    def __init__(self, profiles: Profiles, settings: Settings) -> None:
        self.profiles, self._settings = profiles, settings
        self.types = Numbering()  # of (job type, hosts)
        self.kinds = Numbering()  # of GPU types
        self.counts = Numbering()
        self._shapes = Numbering()  # of (allowed counts, present count)
        self._gives, self._larger = list[list[int]](), list[list[int]]()
        self._seconds, self._overheads = np.zeros((0, 0, 0)), np.zeros((0, 0))

    def is_small(self) -> bool:
        """Return False if it has grown so much that most of its names may be of jobs that have ended."""
        return len(self.types) + len(self._shapes) < 50_000

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
        """By shape: amounts that can be given away, padded with 0."""
        return _padded(self._gives)

    @property
    def larger(self) -> Ints:
        """By shape: allowed counts not below the present one, padded with 0."""
        return _padded(self._larger)

    def count_ids(self, counts: Ints) -> Ints:
        """Return the indices of these counts, all of them known."""
        values = np.fromiter(self.counts, np.intp, len(self.counts))
        order = np.argsort(values)
        return order[np.searchsorted(values, counts, sorter=order)]

    @property
    def seconds(self) -> Floats:
        """Seconds per iteration by GPU type, job type and count; NaN if unknown."""
        size = len(self.kinds), len(self.types), len(self.counts)
        if self._seconds.shape != size:
            self._seconds = np.full(size, math.nan)
            for (job_type, hosts), t in self.types.items():
                for kind, k in self.kinds.items():
                    self._fill(k, t, job_type, kind, hosts)
        return self._seconds

    @property
    def overheads(self) -> Floats:
        """By type: seconds of a reshape, a job's end, checkpoint and exit, a launch's end, and its end and start. 0 at
        the added last entry, for no type."""
        if self._overheads.shape[-1] != len(self.types) + 1:
            known = [self.profiles.overheads(job_type) for job_type, _ in self.types]
            each = [(o.reshape, o.finish, o.ckpt + o.proc_term, o.k8s_term, o.k8s_term + o.k8s_init) for o in known]
            self._overheads = np.array([*each, (0.0,) * 5]).T
        return self._overheads

    def _fill(self, k: int, t: int, job_type: str, kind: str, hosts: int) -> None:
        if hosts == 1 and (job_type, kind) not in self.profiles.speeds:
            return  # most pairs of job type and GPU type are unknown
        for count, c in self.counts.items():
            if count and (speed := self.profiles.speed(job_type, kind, count, hosts)):
                self._seconds[k, t, c] = speed.seconds


def _padded(rows: Sequence[Sequence[int]]) -> Ints:
    matrix = np.zeros((len(rows), max(map(len, rows), default=0)), np.intp)
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = row
    return matrix


def ranks(names: Sequence[str]) -> Ints:
    """Return the position of each name in sorted order; -1 at the added last entry, for no name."""
    found = np.full(len(names) + 1, -1, np.intp)
    found[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return found
