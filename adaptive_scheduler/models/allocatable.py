"""What a node has left for jobs trained on CPU: what was asked for, not what is used. Pure.

Called by the policies that place such jobs or make room for them, and by the simulator, which must agree.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

ROUNDING = 1e-9
"""A share of what is asked for: ten tenths of a core fit in one."""


class Allocatable(NamedTuple):
    """Cores and bytes that nobody has asked for."""

    cores: float
    memory: float

    def holds(self, job: Job) -> bool:
        """Whether the present task of the job fits; one that asks for nothing always does."""
        return all(
            asked * (1 - ROUNDING) <= max(left, 0.0)
            for asked, left in ((job.cores, self.cores), (job.memory, self.memory))
        )

    def lacks(self, job: Job) -> float:
        """How much of what it asks for is missing: a share of it, cores and memory together."""
        pairs = (job.cores, self.cores), (job.memory, self.memory)
        return math.fsum(max(0.0, asked - left) / asked for asked, left in pairs if asked)

    def without(self, job: Job) -> Allocatable:
        return Allocatable(self.cores - job.cores, self.memory - job.memory)


def node_capacity(node: Node) -> Allocatable:
    """As if nobody were there."""
    return Allocatable(node.cores, node.memory or math.inf)


def allocatable_on(snapshot: ClusterSnapshot, name: str, leaving: str | None = None) -> Allocatable:
    """Of this node, as if the job `leaving` were gone. A node whose memory is not known never lacks any."""
    there, all_of_it = [job for job in snapshot.on_cpu[name] if job.id != leaving], node_capacity(snapshot.node[name])
    cores, memory = math.fsum(job.cores for job in there), math.fsum(job.memory for job in there)
    return Allocatable(all_of_it.cores - cores, all_of_it.memory - memory)


def has_capacity_for(snapshot: ClusterSnapshot, name: str, job: Job) -> bool:
    """Whether the present task of the job fits on the node now; on one without cores none does."""
    return snapshot.node[name].cores > 0 and allocatable_on(snapshot, name).holds(job)


def obstacle(snapshot: ClusterSnapshot, name: str, job: Job) -> str:
    """Why a job trained on CPU may not come to this node; empty if it may."""
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
    return "" if has_capacity_for(snapshot, name, job) else "it has not enough cores or memory left"
