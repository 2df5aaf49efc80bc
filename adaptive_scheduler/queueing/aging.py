"""Prevents starvation: keeps nodes for aged jobs and backfills their idle GPUs (`algorithms.md` 1.11).

A job takes GPUs from one victim at most, so a large one may never find its count free at one moment; the same holds for
many cores on CPU. The node nearest to serving an aged job (`order.py`) is kept for it: no other job of its kind
starts, grows or moves there, except by EASY backfill if it ends before the aged job could start. At most one job on
GPUs and one on CPU, the longest waiting, have nodes kept. Backfill never delays the aged job as far as lengths are
known: a running job of unknown length may end at any moment, so nothing is lent on its account, and a borrower's length
and speed must be known. Called by the engine. Pure; seconds from now."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from adaptive_scheduler.candidates import gpus, nodes_for, seconds
from adaptive_scheduler.decision import Explanation, Start, gpus_on
from adaptive_scheduler.models.allocatable import allocatable_on, node_capacity
from adaptive_scheduler.models.prediction import end_is_certain, is_certain, t_keep, t_new
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node


def nodes_to_keep(snapshot: ClusterSnapshot, job: Job) -> tuple[str, ...]:
    """Return the node with most idle GPUs that could hold the job's smallest count, or as few nodes as could together.
    For a job trained on CPU the node with most of its requests left. Empty if none ever could: nothing is
    kept for such a job."""
    if job.uses_cpu:
        return _nearest_on_cpu(snapshot, job)
    if not job.optional:
        return ()
    allowed = sorted((n for n in nodes_for(snapshot, job) if n.schedulable), key=lambda n: (-n.idle, n.name))
    one = next((n for n in allowed if n.healthy >= job.optional[0]), None)
    if one is not None:
        return (one.name,)
    kinds = sorted({n.gpu_type for n in allowed})
    together = [_fewest_nodes([n for n in allowed if n.gpu_type == kind], job) for kind in kinds]
    return min((names for names in together if names), key=lambda names: (len(names), names), default=())


def _nearest_on_cpu(snapshot: ClusterSnapshot, job: Job) -> tuple[str, ...]:
    could = [n for n in snapshot.nodes if n.open and n.heard and job.pinned in (None, n.name) and n.cores > 0]
    large = [n.name for n in could if node_capacity(n).holds(job)]
    return tuple(sorted(large, key=lambda name: (allocatable_on(snapshot, name).lacks(job), name))[:1])


def _fewest_nodes(nodes: list[Node], job: Job) -> tuple[str, ...]:
    most = sorted(nodes, key=lambda n: (-n.healthy, -n.idle, n.name))[: job.max_workers]
    return tuple(n.name for n in most) if sum(n.healthy for n in most) >= job.optional[0] else ()


class KeptNodes:
    """Says which nodes are kept for aged jobs during one tick."""

    def __init__(self) -> None:
        self._nodes: dict[bool, tuple[str, ...]] = {}  # by whether for a job trained on CPU
        self._job: dict[bool, str] = {}
        self._marked: dict[bool, tuple[ClusterSnapshot, ClusterSnapshot]] = {}  # last snapshot and its marked form
        self._until: tuple[ClusterSnapshot, float] | None = None  # earliest start of the aged job on GPUs

    @property
    def any(self) -> bool:
        """True if a node is kept for an aged job on GPUs."""
        return bool(self._nodes.get(False))

    def keep(self, snapshot: ClusterSnapshot, job: Job) -> bool:
        """Keep nodes for the job unless an older one of its kind has some; return whether any are kept."""
        if self._nodes.get(job.uses_cpu):
            return False
        self._nodes[job.uses_cpu] = nodes_to_keep(snapshot, job)
        self._job[job.uses_cpu] = job.id
        return bool(self._nodes[job.uses_cpu])

    def mark_kept(self, snapshot: ClusterSnapshot, on_cpu: bool = False) -> ClusterSnapshot:
        """Return the snapshot as all other jobs on GPUs, or trained on CPU, see it."""
        nodes = self._nodes.get(on_cpu)
        if not nodes:
            return snapshot
        if on_cpu not in self._marked or self._marked[on_cpu][0] is not snapshot:
            kept = (replace(n, kept_for=self._job[on_cpu]) if n.name in nodes else n for n in snapshot.nodes)
            self._marked[on_cpu] = snapshot, snapshot.then(nodes=tuple(kept))
        return self._marked[on_cpu][1]

    def backfill(self, snapshot: ClusterSnapshot, job: Job) -> Start | None:
        """Return a start of the job on idle GPUs of a kept node that ends before the aged job could start."""
        names = self._nodes.get(False, ())
        if job.uses_cpu or not any(snapshot.node[name].idle for name in names):
            return None
        kept = self._job[False]
        if self._until is None or self._until[0] is not snapshot:
            self._until = snapshot, earliest_start_s(snapshot, names, snapshot.job[kept])
        return backfill_start(snapshot, names, kept, self._until[1], job)


BACKFILL = "elastic.backfill"


def earliest_start_s(snapshot: ClusterSnapshot, names: Collection[str], kept: Job) -> float:
    """Return when these nodes have the fewest GPUs of the aged job `kept`, if running jobs there only end. Infinite if
    never, as far as lengths are known."""
    missing = min(kept.optional) - sum(snapshot.node[name].idle for name in names)
    there = ((job, sum(gpus_on(job, name) for name in names)) for job in snapshot.placed)
    leaves = sorted((_earliest_end_s(snapshot, job), count) for job, count in there if count)
    at_s = 0.0
    for ends_s, count in leaves:
        if missing <= 0:
            break
        missing, at_s = missing - count, ends_s
    return at_s if missing <= 0 else math.inf


def backfill_start(
    snapshot: ClusterSnapshot, names: Collection[str], kept: str, until_s: float, job: Job
) -> Start | None:
    """Return the start of a waiting job on one of these kept nodes where it ends soonest; None if none fits.
    `until_s`: from `earliest_start_s`, for the aged job `kept`."""
    ends = list[tuple[float, int, str]]()
    for node in nodes_for(snapshot, job):
        if node.name not in names:
            continue
        for count in job.optional:
            if 0 < count <= node.idle and is_certain(snapshot.profiles, job, node.gpu_type, count):
                ends.append((t_new(snapshot.profiles, job, node.gpu_type, count), count, node.name))
    ends_s, count, name = min(ends, default=(math.inf, 0, ""))
    if not ends_s < until_s < math.inf:
        return None
    sentence = (
        f"{job.id} starts on {gpus(count)} of {name}, which is kept for {kept}: it is predicted to end in "
        f"{seconds(ends_s)}, and {kept} can start there in {seconds(until_s)} at the earliest."
    )
    return Start(job.id, name, count, Explanation(BACKFILL, sentence))


def _earliest_end_s(snapshot: ClusterSnapshot, job: Job) -> float:
    """Return its end at the earliest: 0 if its length or speed is unknown."""
    if job.node is None or not end_is_certain(snapshot, job):
        return 0.0
    return t_keep(snapshot.profiles, job, snapshot.node[job.node].gpu_type)
