"""Implements Gavel (OSDI 2020): time shares per job and GPU type from a linear program, carried out in rounds.

Source: its sections 3 and 4. A job runs on its requested count; the policy chooses its share of time on each GPU type.
`GavelRounds` assigns rounds so that the received time approaches these shares. Without space sharing, and without its
mechanism's deficits, which only break ties. Stateful: one object per run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeShareJob:
    """One unfinished job: its requested count and its remaining seconds on each GPU type that it can run on."""

    id: str
    asked: int
    seconds: Mapping[str, float]


Pool = Mapping[str, int]
"""GPUs by type."""

Shares = Mapping[str, Mapping[str, float]]
"""By job and GPU type: share of time, 0..1; the shares of a job add up to at most 1."""

Objective = Callable[[Sequence[TimeShareJob], Pool], Shares]


def makespan(jobs: Sequence[TimeShareJob], pool: Pool) -> Shares:
    """Minimise the makespan: maximise the least share of remaining work done per second (section 4.2)."""
    return _solve(jobs, pool, _rates(jobs, pool))


def max_min(jobs: Sequence[TimeShareJob], pool: Pool) -> Shares:
    """Maximise the least throughput, relative to an equal share of the cluster and weighted by GPUs (section 4.1)."""
    rates = _rates(jobs, pool)
    equal = rates @ (np.array(list(pool.values())) / sum(pool.values()))
    asked = np.array([job.asked for job in jobs])
    return _solve(jobs, pool, rates * (asked / np.maximum(equal, 1e-12))[:, None])


def fifo(jobs: Sequence[TimeShareJob], pool: Pool) -> Shares:
    """By submission, assign the fastest type with room; a job that does not fit blocks the rest (section 6.1)."""
    free, shares = dict(pool), {job.id: dict.fromkeys(pool, 0.0) for job in jobs}
    for job in jobs:
        fits = [kind for kind in pool if kind in job.seconds and free[kind] >= job.asked]
        if not fits:
            break
        best = min(fits, key=lambda kind: job.seconds[kind])
        free[best] -= job.asked
        shares[job.id][best] = 1.0
    return shares


class GavelRounds:
    """Chooses the jobs of the next round: those that have received least of their shares (section 5)."""

    def __init__(self, objective: Objective, round_s: float) -> None:
        self._objective = objective
        self._round_s = round_s
        self._jobs: frozenset[str] = frozenset()
        self._pool: Pool = {}
        self._shares: Shares = {}
        self._had: dict[tuple[str, str], float] = {}

    def ran(self, job: str, kind: str, seconds: float) -> None:
        """Record received time; ignore jobs that have ended meanwhile."""
        if (job, kind) in self._had:
            self._had[job, kind] += seconds

    def pick(self, jobs: Sequence[TimeShareJob], pool: Pool) -> dict[str, str]:
        """Return the GPU type by job; recomputes the shares when jobs or GPUs have changed."""
        known = frozenset(job.id for job in jobs)
        if (known, pool) != (self._jobs, self._pool):
            self._jobs, self._pool = known, pool
            self._shares = self._objective(jobs, pool) if jobs and pool else {}
            self._had = {(job.id, kind): self._round_s / 2 for job in jobs for kind in pool}
        picked: dict[str, str] = {}
        for kind in sorted(pool, key=lambda kind: (-_speed(jobs, kind), kind)):
            free, total = pool[kind], sum(self._had[job, kind] for job in known)
            # Ties go to the larger share, as in Gavel; sorted() keeps the order of submission.
            due = sorted(jobs, key=lambda job: self._urgency(job, kind, total), reverse=True)
            for job in due:
                if job.id not in picked and job.asked <= free and self._shares[job.id].get(kind, 0.0) > 0:
                    picked[job.id] = kind
                    free -= job.asked
        return picked

    def _urgency(self, job: TimeShareJob, kind: str, total: float) -> tuple[float, float]:
        share = self._shares[job.id].get(kind, 0.0)
        return share * total / self._had[job.id, kind], share


def _solve(jobs: Sequence[TimeShareJob], pool: Pool, worth: Floats) -> Shares:
    """Return the shares that maximise the least worth. RuntimeError if the solver fails: a solution always exists."""
    count, kinds = worth.shape
    size = count * kinds
    # Variables: the share of job i on type t at i * kinds + t, then the least worth.
    each = np.kron(np.eye(count), np.ones(kinds))
    types = np.tile(np.eye(kinds), count) * np.repeat([job.asked for job in jobs], kinds)
    floor = np.kron(np.eye(count), np.ones(kinds)) * -worth.reshape(-1)
    above = np.vstack([np.c_[each, np.zeros(count)], np.c_[types, np.zeros(kinds)], np.c_[floor, np.ones(count)]])
    limits = np.r_[np.ones(count), list(pool.values()), np.zeros(count)]
    least = np.r_[np.zeros(size), -1.0]
    most = [(0.0, 1.0 if rate > 0 else 0.0) for rate in worth.reshape(-1)]
    found = linprog(least, above, limits, bounds=[*most, (0.0, None)], method="highs")
    if found.status != 0:
        raise RuntimeError(f"Gavel's shares were not found ({found.message}); leave this policy out.")
    shares = found.x[:size].reshape(count, kinds)
    return {job.id: dict(zip(pool, map(float, row), strict=True)) for job, row in zip(jobs, shares, strict=True)}


def _rates(jobs: Sequence[TimeShareJob], pool: Pool) -> Floats:
    """Return the share of remaining work per second by job and type; 0 where a job cannot run."""
    return np.array([[1.0 / job.seconds[kind] if job.seconds.get(kind) else 0.0 for kind in pool] for job in jobs])


def _speed(jobs: Sequence[TimeShareJob], kind: str) -> float:
    """Return the total speed on a GPU type; faster types are assigned first."""
    return sum(1.0 / job.seconds[kind] for job in jobs if job.seconds.get(kind))
