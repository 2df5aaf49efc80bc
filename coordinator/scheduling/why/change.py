"""Defines a single change of a snapshot, such as a node that is opened, and applies it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from adaptive_scheduler.decision import gpus_on
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node


@dataclass(frozen=True)
class Change:
    """One thing that could be otherwise. `job` or `node` stands in place of the one of that id."""

    binds: str  # what is in the way as it is: a noun, for people
    remedy: str  # goes on behind "it would start now"
    job: Job | None = None
    node: Node | None = None
    ended: Job | None = None  # has left its GPUs
    settings: Settings | None = None

    def apply_to(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Return the snapshot as it would be."""
        jobs, nodes = snapshot.jobs, snapshot.nodes
        if self.job is not None:
            jobs = tuple(self.job if job.id == self.job.id else job for job in jobs)
        if self.node is not None:
            nodes = tuple(self.node if node.name == self.node.name else node for node in nodes)
        if self.ended is not None:
            gone = self.ended
            jobs = tuple(job for job in jobs if job.id != gone.id)
            nodes = tuple(_without(node, gone) for node in nodes)
        return replace(snapshot, jobs=jobs, nodes=nodes)


def with_more(node: Node, count: int) -> Node:
    """Return the node with so many more idle GPUs."""
    more = tuple(Gpu(f"{node.name}+{i}") for i in range(count))
    return replace(node, gpus=(*node.gpus, *more))


def _without(node: Node, job: Job) -> Node:
    left = gpus_on(job, node.name)
    return replace(node, gpus=tuple(_freed(node, job, left))) if left else node


def _freed(node: Node, job: Job, left: int) -> Iterator[Gpu]:
    """Yield the GPUs of a node with those of the job idle, at most `left`."""
    for gpu in node.gpus:
        frees = left > 0 and gpu.job == job.id and gpu.state != "faulty"
        left -= frees
        yield replace(gpu, state="idle", job=None, held_by=None) if frees else gpu
