"""Reads from a snapshot what each job has and wants, by owner, in standard GPUs.

A standard GPU is one of the fastest type: others count by their measured speed against it. Called by `standing.py` and
`rights.py`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from adaptive_scheduler.index import Floats, Ints
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.shares import JobOwner, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node


class OwnerIndex:
    """Numbers the owners of jobs."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._numbers: dict[JobOwner, int] = {}
        self.owners: list[JobOwner] = []

    def number(self, job: Job) -> int:
        owner = self._shares.owner_of(job.queue, job.owner)
        if owner not in self._numbers:
            self._numbers[owner] = len(self.owners)
            self.owners.append(owner)
        return self._numbers[owner]

    def is_small(self) -> bool:
        """Return False if it has grown so much that most of its owners may be gone."""
        return len(self.owners) < 10_000


class JobColumns(NamedTuple):
    """Columns with one number per job of the snapshot, in its order."""

    owner: Ints  # by `OwnerIndex`; -1: trained on CPU
    gpus: Floats  # that it has, or is promised
    value: Floats  # of each of these, in standard GPUs
    demand: Floats  # most that it could have, in standard GPUs
    fixed: Floats  # nobody else gets any of its GPUs


def read_jobs(snapshot: ClusterSnapshot, index: OwnerIndex, values: Mapping[str, float]) -> JobColumns:
    """Return what all jobs have and want; only those that have changed are worked out again."""
    largest: dict[str, int] = {}
    for node in snapshot.nodes:
        if node.gpus:
            largest[node.gpu_type] = max(largest.get(node.gpu_type, 0), node.working)
    types = snapshot.gpu_types if values else {}
    rows = snapshot.rows(_row, index, largest, values, types).reshape(-1, len(JobColumns._fields)).T
    return JobColumns(rows[0].astype("intp"), *rows[1:])


def _row(
    job: Job, index: OwnerIndex, largest: Mapping[str, int], values: Mapping[str, float], types: Mapping[str, str]
) -> tuple[float, ...]:
    if job.uses_cpu:
        return -1, 0.0, 1.0, 0.0, False
    allowed = [name for name in largest if job.gpu_type in (None, name)]
    most = max((largest[name] for name in allowed), default=0)
    best = max((values.get(name, 1.0) for name in allowed), default=1.0)
    value = values.get(types.get(job.node or "", ""), 1.0)
    return index.number(job), job.num_gpus, value, most_gpus(job, most) * best, job.preemption == "never"


def most_gpus(job: Job, largest: int) -> int:
    """Return the most GPUs that it could have, on nodes of at most `largest`; those that it has if it keeps these."""
    keeps = job.num_gpus and (job.rigid or job.wanted is not None)
    if keeps or job.suspended:
        return job.num_gpus
    most = largest * max(1, job.max_workers)
    return max(job.num_gpus, max((count for count in job.optional if count <= most), default=0))


def read_values(snapshot: ClusterSnapshot) -> Mapping[str, float]:
    """Return how many standard GPUs one of each type counts; empty if all count 1."""
    types = tuple(sorted({node.gpu_type for node in snapshot.nodes if node.gpus}))
    if len(types) < 2:
        return {}
    values = snapshot.shares.gpu_values or snapshot.once(measured_values, snapshot.profiles, types)
    return {} if all(values.get(name, 1.0) == 1.0 for name in types) else values


def measured_values(profiles: Profiles, types: tuple[str, ...]) -> dict[str, float]:
    """Return by GPU type its median speed against the fastest one, over the job types that were measured on several."""
    found: dict[str, list[float]] = defaultdict(list)
    for job_type in sorted({job_type for job_type, _ in profiles.speeds}):
        rows = {name: row for name in types if (row := profiles.speeds.get((job_type, name)))}
        common = set.intersection(*map(set, rows.values())) if len(rows) > 1 else set[int]()
        if common:
            took_s = {name: row[min(common)].seconds for name, row in rows.items()}
            for name, seconds in took_s.items():
                found[name].append(min(took_s.values()) / seconds if seconds else 1.0)
    return {name: round(median(found[name]), 2) if found[name] else 1.0 for name in types}


def node_row(node: Node, values: Mapping[str, float]) -> tuple[float, float, float, float]:
    """Return the GPUs of a node on which jobs may run, and the idle ones, in GPUs and in standard GPUs."""
    value = values.get(node.gpu_type, 1.0)
    working = node.healthy if node.schedulable else 0
    return working, node.idle, working * value, node.idle * value
