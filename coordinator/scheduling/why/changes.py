"""Lists the single changes that might start a waiting job now, the cheapest first. Pure.

First what passes by itself, then what its own document asks for, then what an operator may change at once, then what
other jobs allow, then GPUs that are not there. Bounded: of many jobs or nodes only a few are tried, those that have
most to give. Called by `search.py`, which asks the scheduler about each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from adaptive_scheduler.candidates import gpus, nodes_for, told_as_used
from adaptive_scheduler.models.allocatable import allocatable_on
from adaptive_scheduler.models.prediction import t_keep
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node
from coordinator.scheduling.why.change import Change, with_more

EACH = 4
"""Jobs, or nodes, that are tried for one kind of change."""

LATER = {60.0: "1 min", 300.0: "5 min", 900.0: "15 min", 3600.0: "1 h", 14_400.0: "4 h", 86_400.0: "1 day"}
"""By how much a deadline is moved."""

SMALL = 8
"""Counts up to which each is tried; of larger ones those that some node has idle, and powers of two."""


def changes(world: ClusterSnapshot, job: Job, now: float, settings: Settings) -> Iterator[Change]:
    """Yield what might start `job`, one change at a time. `world`: the jobs and nodes that may have to do with it."""
    there = {node.name for node in world.nodes if job.uses_cpu or node in nodes_for(world, job)}
    on_same = [j for j in world.jobs if j.node in there and j.uses_cpu == job.uses_cpu and (j.uses_cpu or j.num_gpus)]
    others = sorted(on_same, key=lambda j: (-j.num_gpus, j.id))
    if not job.uses_cpu:
        yield from _passing(others, now)
        yield from _own_counts(world, job, settings)
    yield from _own_place(world, job)
    yield from _nodes(world, job)
    if not job.uses_cpu:
        yield from _requested(others)
        if "deadline" in settings.systems:
            yield from _deadlines(others)
        yield from _kept(world, job, others)
        yield from _policy(settings)
        yield from _more(world, job, [1])
    yield from _ends(world, others)
    if not job.uses_cpu and job.optional:
        most = job.optional[0] if "elastic" in settings.systems else job.optional[-1]
        yield from _more(world, job, range(2, most + 1) if most <= SMALL else _some(world, most))


def _passing(others: list[Job], now: float) -> Iterator[Change]:
    """What is over in a while without anybody's doing."""
    for other in islice((j for j in others if j.busy or j.state != "running"), EACH):
        still = replace(other, busy=False, state="running")
        yield Change(
            f"the operation under way on {other.id}", f"if the operation under way on {other.id} were done", still
        )
    for other in islice((j for j in others if j.cooling_until > now), EACH):
        cool = replace(other, cooling_until=0.0)
        binds = f"the cool-down of {other.id}"
        yield Change(binds, f"if {binds}, which was reshaped a short while ago, were over", cool)


def _own_counts(world: ClusterSnapshot, job: Job, settings: Settings) -> Iterator[Change]:
    """Fewer GPUs, the most of them first; more hosts."""
    least, each = job.optional[0] if job.optional else 0, job.gpus_per_pod or 1
    elastic = "elastic" in settings.systems
    binds = f"its smallest count, {gpus(least)}" if elastic else "its fixed count"
    for count in _fewer(world, least if elastic else max(job.optional, default=0)):
        if count % each == 0:
            # Without SideCar scheduling a job gets its largest count that some node has.
            allowed = {count, *job.optional} if elastic else {count, *(n for n in job.optional if n < count)}
            counts = sorted(allowed)
            fewer = replace(job, optional=tuple(counts))
            yield Change(binds, f"with --gpus {','.join(map(str, counts))}", fewer)
    for hosts in range(max(1, job.max_workers) + 1, 5):
        spread = replace(job, max_workers=hosts)
        yield Change(
            f"its limit of {_nodes_of(max(1, job.max_workers))} (max_workers)", f"with max_workers {hosts}", spread
        )


def _fewer(world: ClusterSnapshot, than: int) -> list[int]:
    return list(range(than - 1, 0, -1)) if than <= SMALL else [n for n in reversed(_some(world, than)) if n < than]


def _some(world: ClusterSnapshot, most: int) -> list[int]:
    """Return counts up to `most`: those that some node has idle or lacks, and powers of two."""
    idle = {node.idle for node in world.nodes}
    return sorted(n for n in idle | {most - n for n in idle} | {2**n for n in range(12)} if 1 <= n <= most)


def _nodes_of(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _own_place(world: ClusterSnapshot, job: Job) -> Iterator[Change]:
    """Another GPU type or node than its document demands; what it uses of a node for jobs trained on CPU."""
    if job.gpu_type is not None:
        for kind in sorted({node.gpu_type for node in world.nodes if node.gpus} - {job.gpu_type}):
            yield Change(f"its GPU type, {job.gpu_type}", f"with --gpu-type {kind}", replace(job, gpu_type=kind))
    if job.pinned is not None and not job.stays:
        yield Change(
            f"its pin to node {job.pinned}", f"without its pin to node {job.pinned}", replace(job, pinned=None)
        )
    if job.uses_cpu and job.tasks:
        yield from _smaller_requests(world, job)


def _smaller_requests(world: ClusterSnapshot, job: Job) -> Iterator[Change]:
    first = job.tasks[0]
    left = [
        allocatable_on(world, node.name).cores - job.beside_cores
        for node in world.nodes
        if node.open and node.cores > 0
    ]
    for cores in sorted({room // first.replicas for room in left if room >= first.replicas}, reverse=True):
        if 0 < cores < first.cores:
            task = replace(first, cores=cores)
            asked = first.cores * first.replicas
            fits = cores * first.replicas
            binds = f"its request of {asked:g} cores"
            yield Change(binds, f"with {fits:g} of its {asked:g} cores", replace(job, tasks=(task, *job.tasks[1:])))


def _nodes(world: ClusterSnapshot, job: Job) -> Iterator[Change]:
    """Nodes that are closed, silent or have GPUs that are faulty or used by others."""
    allowed = [node for node in world.nodes if job.pinned in (None, node.name)]
    for node in islice((n for n in allowed if not n.schedulable), EACH):
        opened = replace(node, schedulable=True, drained=False, cordoned=False)
        yield Change(f"that node {node.name} is {_why_closed(node)}", _how_to_open(node), node=opened)
    for node in islice((n for n in allowed if not n.heard), EACH):
        back = replace(node, heard=True)
        yield Change(
            f"that node {node.name} has not been heard of lately",
            f"if the agent of node {node.name} reported again",
            node=back,
        )
    for node in islice((n for n in allowed if n.used_by_others), EACH):
        free = _sound(node, lambda gpu: gpu.used_by_others)
        yield Change(f"that {told_as_used(node)}", f"if nobody else used GPUs of node {node.name}", node=free)
    for node in islice((n for n in allowed if n.working < len(n.gpus)), EACH):
        broken = gpus(len(node.gpus) - node.working)
        verb = "is" if broken == "1 GPU" else "are"
        sound = _sound(node, lambda gpu: gpu.state == "faulty" and not gpu.used_by_others)
        yield Change(
            f"that {broken} of node {node.name} {verb} faulty",
            f"if {broken} of node {node.name} worked again",
            node=sound,
        )


def _why_closed(node: Node) -> str:
    if not node.drained:
        return "closed"
    return "drained, and closed on its cluster" if node.cordoned else "drained"


def _how_to_open(node: Node) -> str:
    """Return the command that opens a drained node, if that alone does. Whoever cordons one knows another tool."""
    if node.drained and not node.cordoned:
        return f"after `reshape undrain {node.name}`"
    return f"if node {node.name} were open"


def _sound(node: Node, which: Callable[[Gpu], bool]) -> Node:
    """Return the node with these of its GPUs idle."""
    return replace(node, gpus=tuple(Gpu(gpu.id) if which(gpu) else gpu for gpu in node.gpus))


def _requested(others: Iterable[Job]) -> Iterator[Change]:
    for other in islice((j for j in others if j.wanted is not None), EACH):
        binds = f"the count that an operator requested for {other.id}"
        yield Change(binds, f"after `reshape reshape {other.id} --auto`", replace(other, wanted=None))


def _deadlines(jobs: Iterable[Job]) -> Iterator[Change]:
    for job in islice((j for j in jobs if j.sla_s is not None), EACH):
        for seconds, words in LATER.items():
            later = replace(job, sla_s=(job.sla_s or 0.0) + seconds)
            yield Change(f"the deadline of {job.id}", f"if the deadline of {job.id} were {words} later", later)


def _kept(world: ClusterSnapshot, job: Job, others: list[Job]) -> Iterator[Change]:
    """What a running job would have to allow to give what is missing."""
    for other in islice((j for j in others if not j.stoppable), EACH):
        shown = replace(other, rigid=False)
        binds = f"that {other.id} has not shown that it can save and resume"
        yield Change(binds, f"if {other.id} had shown that it can save and resume", shown)
    for other in islice((j for j in others if j.stays and j.relaunches), EACH):
        binds = f"that {other.id} has no checkpoint_claim"
        yield Change(binds, f"if {other.id} had a checkpoint_claim", replace(other, stays=False))
    whole = (j for j in others if not j.gpus_per_pod and not j.workers)
    for other in islice(whole, EACH):
        keeps = other.num_gpus + world.node[other.node or ""].idle - min(job.optional, default=0)
        if 0 < keeps < other.num_gpus and keeps not in other.optional:
            smaller = replace(other, optional=tuple(sorted({keeps, *other.optional})))
            binds = f"that {other.id} may not run on {gpus(keeps)}"
            yield Change(binds, f"if {other.id} might run on {gpus(keeps)}", smaller)


def _policy(settings: Settings) -> Iterator[Change]:
    if "elastic" not in settings.systems:
        elastic = replace(settings, systems=("elastic", *settings.systems))
        binds = "the policy, which takes no GPUs from running jobs"
        yield Change(binds, "under the policy planner", settings=elastic)
    binds, later = "that all jobs are predicted to end earlier if it waits", "with RESHAPE_COMPARE_WITH_WAITING=0"
    if settings.spare_critical:
        yield Change(binds, "with RESHAPE_SPARE_CRITICAL=0", settings=replace(settings, spare_critical=False))
    if settings.compare_with_waiting:
        yield Change(binds, later, settings=replace(settings, compare_with_waiting=False))


def _more(world: ClusterSnapshot, job: Job, counts: Iterable[int]) -> Iterator[Change]:
    open_ = [node for node in nodes_for(world, job) if node.open]
    largest = sorted(open_, key=lambda node: (-node.idle, node.name))[:1]
    for node, count in ((node, count) for node in largest for count in counts):
        binds = f"the number of {node.gpu_type} GPUs on node {node.name}"
        more = f"1 more {node.gpu_type} GPU" if count == 1 else f"{count} more {node.gpu_type} GPUs"
        yield Change(binds, f"with {more} on node {node.name}", node=with_more(node, count))


def _ends(world: ClusterSnapshot, others: Iterable[Job]) -> Iterator[Change]:
    """Running jobs, the one that is predicted to end first in front."""

    def left_s(other: Job) -> tuple[float, str]:
        kind = world.node[other.node or ""].gpu_type
        return 0.0 if other.uses_cpu else t_keep(world.profiles, other, kind), other.id

    for other in sorted(others, key=left_s)[: 2 * EACH]:
        binds = f"that {other.id} has the cores" if other.uses_cpu else f"that {other.id} has the GPUs"
        yield Change(binds, f"if {other.id} had ended", ended=other)
