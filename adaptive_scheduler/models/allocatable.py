"""Computes the allocatable cores and memory of a node for jobs trained on CPU, from requests rather than use.

Called by the policies that place such jobs and by the simulator, which must agree. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

ROUNDING = 1e-9  # relative tolerance of sums: ten tenths of a core fit in one


class Allocatable(NamedTuple):
    """Cores and bytes of memory that no job has requested."""

    cores: float
    memory: float

    def holds(self, job: Job) -> bool:
        """Return whether the present task of the job fits; one without requests always does."""
        return all(
            asked * (1 - ROUNDING) <= max(left, 0.0)
            for asked, left in ((job.cores, self.cores), (job.memory, self.memory))
        )

    def lacks(self, job: Job) -> float:
        """Return the missing share of the job's requests, cores and memory added."""
        pairs = (job.cores, self.cores), (job.memory, self.memory)
        return math.fsum(max(0.0, asked - left) / asked for asked, left in pairs if asked)

    def without(self, job: Job) -> Allocatable:
        return Allocatable(self.cores - job.cores, self.memory - job.memory)


def node_capacity(node: Node) -> Allocatable:
    """Return all cores and memory of the node, as if it were empty."""
    return Allocatable(node.cores, node.memory or math.inf)


def allocatable_on(snapshot: ClusterSnapshot, name: str, leaving: str | None = None) -> Allocatable:
    """Return what is left on the node, without the job `leaving`. Unknown memory counts as infinite."""
    there, all_of_it = [job for job in snapshot.on_cpu[name] if job.id != leaving], node_capacity(snapshot.node[name])
    cores, memory = math.fsum(job.cores for job in there), math.fsum(job.memory for job in there)
    return Allocatable(all_of_it.cores - cores, all_of_it.memory - memory)


def has_capacity_for(snapshot: ClusterSnapshot, name: str, job: Job) -> bool:
    """Return whether the present task of the job fits on the node now; never on one without cores."""
    return snapshot.node[name].cores > 0 and allocatable_on(snapshot, name).holds(job)


def obstacle(snapshot: ClusterSnapshot, name: str, job: Job) -> str:
    """Return the reason why a job trained on CPU may not come to this node; empty if it may."""
    node = snapshot.node[name]
    if node.cores <= 0:
        return "it has no cores for jobs trained on CPU"
    if job.pinned not in (None, name):
        return f"{job.id} is pinned to {job.pinned}"
    if not node.heard:
        return "it has not been heard of lately"
    if not node.schedulable:
        return "it is closed to new jobs"
    if node.kept_for not in (None, job.id):
        return f"it is kept for {node.kept_for}, which has waited long"
    return "" if has_capacity_for(snapshot, name, job) else "it has not enough cores or memory left" + node.used_by
