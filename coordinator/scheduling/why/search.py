"""Finds the smallest single change that would start a waiting job now, by asking the scheduler. Pure.

`decide` itself is run on changed snapshots: first on the few nodes that could matter, which costs the same on a cluster
of any size; what starts the job there is checked on the whole cluster. Called by `reasons.py`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import islice

from adaptive_scheduler.decision import Start, gpus_on
from adaptive_scheduler.engine import decide
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from coordinator.scheduling.why.change import Change
from coordinator.scheduling.why.changes import changes

NEAR = 8
"""Nodes of each GPU type on which changes are looked for."""

MOST = 64
"""Changes that are tried on these nodes."""

CHECKED = 3
"""Changes that are tried on the whole cluster."""

QUEUE = Change("its place in the queue", "if no other job waited")


def smallest_change(world: ClusterSnapshot, job: Job, now: float, settings: Settings) -> Change | None:
    """Return what would start `job`, which waits in `world`; None if no single change was found.

    `world`: with the decisions of the turn applied, and no other job in the queue (`alone`).
    """
    # CPU limits and moves between nodes come after the queue and start nothing.
    settings = replace(settings, systems=tuple(s for s in settings.systems if s in ("elastic", "deadline")))
    if _starts(world, job, now, settings):
        return QUEUE
    few, left = near(world, job), CHECKED
    for change in islice(changes(few, job, now, settings), MOST):
        if _starts(change.apply_to(few), job, now, change.settings or settings):
            if _starts(change.apply_to(world), job, now, change.settings or settings):
                return change
            left -= 1
        if not left:
            break
    return None


def alone(world: ClusterSnapshot, job: Job) -> ClusterSnapshot:
    """Return the snapshot with `job` as the only one that may be started; the work of the others still counts."""
    queue = {other.id for other in world.queue} - {job.id}
    jobs = (replace(other, busy=True) if other.id in queue else other for other in world.jobs)
    return replace(world, jobs=tuple(jobs))


def near(world: ClusterSnapshot, job: Job) -> ClusterSnapshot:
    """Return the nodes of each type that come closest to what the job asks for, with the jobs there, and the job."""
    largest: dict[str, int] = defaultdict(int)  # the most that one job could leave, by node
    for other in world.placed:
        for name in {other.node, *(worker.node for worker in other.workers)}:
            largest[name or ""] = max(largest[name or ""], gpus_on(other, name or ""))

    def reach(node: Node) -> tuple[float, str]:
        free = sum(gpu.state == "idle" for gpu in node.gpus) + largest[node.name]
        return (-node.cores if job.uses_cpu else -free), node.name

    kinds: dict[str, list[Node]] = defaultdict(list)
    for node in world.nodes:
        if node.cores > 0 if job.uses_cpu else node.gpus:
            kinds[node.gpu_type].append(node)
    nodes = [node for kind in kinds.values() for node in sorted(kind, key=reach)[:NEAR]]
    nodes += [node for node in world.nodes if node.name == job.pinned and node not in nodes]
    names = {node.name for node in nodes}
    jobs = (other for other in world.jobs if other.id == job.id or other.node in names)
    return replace(world, nodes=tuple(nodes), jobs=tuple(jobs))


def _starts(world: ClusterSnapshot, job: Job, now: float, settings: Settings) -> bool:
    return any(isinstance(one, Start) and one.job == job.id for one in decide(world, now, settings))
