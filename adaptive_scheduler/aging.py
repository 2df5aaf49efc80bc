"""Nobody starves: what becomes free is kept for a job that has waited very long (`algorithms.md` 1.11).

A job takes GPUs from one victim at most, so a large one may never find its count free at one moment. Once
it has waited `Settings.reserve_after_s`, the node where it comes nearest is its own: nobody else starts or
grows there. Only the longest waiting job that cannot start has one. Called by the engine. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from adaptive_scheduler.ways import nodes_for


def is_aged(job: Job, now: float, settings: Settings) -> bool:
    """Whether it has waited so long; without seed 004 nobody is, since the paper's baselines let jobs starve."""
    after_s = settings.reserve_after_s
    return "elastic" in settings.systems and not job.uses_cpu and 0 < after_s <= now - job.submit_s


def aged_first(queue: Iterable[Job], now: float, settings: Settings) -> list[Job]:
    """The aged jobs, the longest waiting first, then the others as they come."""
    queue = list(queue)
    aged = sorted((j for j in queue if is_aged(j, now, settings)), key=lambda j: (j.submit_s, j.id))
    return [*aged, *(j for j in queue if not is_aged(j, now, settings))]


def nearest(snapshot: ClusterSnapshot, job: Job) -> tuple[str, ...]:
    """The node with most idle GPUs of those that could hold its smallest count, or as few nodes as could together.

    Empty where none ever could: such a job must not keep anything from the others.
    """
    if not job.optional:
        return ()
    allowed = sorted((n for n in nodes_for(snapshot, job) if n.schedulable), key=lambda n: (-n.idle, n.name))
    one = next((n for n in allowed if n.healthy >= job.optional[0]), None)
    if one is not None:
        return (one.name,)
    kinds = sorted({n.gpu_type for n in allowed})
    together = [_together([n for n in allowed if n.gpu_type == kind], job) for kind in kinds]
    return min((names for names in together if names), key=lambda names: (len(names), names), default=())


def _together(nodes: list[Node], job: Job) -> tuple[str, ...]:
    most = sorted(nodes, key=lambda n: (-n.healthy, -n.idle, n.name))[: job.max_workers]
    return tuple(n.name for n in most) if sum(n.healthy for n in most) >= job.optional[0] else ()


def keep(snapshot: ClusterSnapshot, nodes: tuple[str, ...], job: str) -> ClusterSnapshot:
    """As all other jobs see it."""
    if not nodes:
        return snapshot
    return replace(snapshot, nodes=tuple(replace(n, kept_for=job) if n.name in nodes else n for n in snapshot.nodes))
