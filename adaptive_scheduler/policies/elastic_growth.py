"""Every way that Algorithm 2 may take, with what each is predicted to lead to (seed 004; sequences C and D).

The search is exhaustive, as printed, O(1) per way through `RemainingTimes`; of equal nodes to move to only
the first by name is looked at. Called by `elastic.py`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from adaptive_scheduler.decision import placed_on
from adaptive_scheduler.policies.elastic_ways import Search, refused
from adaptive_scheduler.prediction import cross_host_s, reshape_cost_s, t_run
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Worker
from adaptive_scheduler.ways import GOOD, Way, no_speed, nodes_for, seconds, spread, why_not


class _Roomy:
    """The first node by name of a GPU type with so many idle GPUs, each looked for once."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._nodes: dict[str, list[Node]] = {}
        for node in sorted(snapshot.nodes, key=lambda n: n.name):
            if node.idle and node.heard:
                self._nodes.setdefault(node.gpu_type, []).append(node)
        self.kinds = sorted(self._nodes)
        self.largest = max((n.idle for of_kind in self._nodes.values() for n in of_kind), default=0)
        self._found: dict[tuple[str, int], Node | None] = {}

    def first(self, kind: str, count: int, own: set[str]) -> Node | None:
        """None where there is no such node but the job's own."""
        if (kind, count) not in self._found:
            self._found[kind, count] = self._look(kind, count, set())
        found = self._found[kind, count]
        return found if found is None or found.name not in own else self._look(kind, count, own)

    def _look(self, kind: str, count: int, own: set[str]) -> Node | None:
        return next((n for n in self._nodes.get(kind, ()) if n.idle >= count and n.name not in own), None)


def running_ways(search: Search) -> Iterator[Way]:
    """All ways for a running job to get idle GPUs, on its own hosts, on further ones, or wholly elsewhere (G8)."""
    roomy, settings = _Roomy(search.snapshot), search.settings
    for job in search.snapshot.placed:
        node = search.snapshot.node.get(job.node or "")
        if node is None:
            continue
        # Most jobs of a busy cluster have nowhere to grow, and are not looked at any closer.
        on_one = job.max_workers == 1 and not job.workers and settings.placement == "host"
        stuck = on_one and not node.idle and not (settings.moves and job.num_gpus <= roomy.largest)
        if stuck or why_not(job, search.now):
            continue
        for count in job.optional:
            if count > job.num_gpus:
                yield from _grown(search, job, node, count)
            if settings.moves and job.num_gpus <= count <= roomy.largest:
                yield from _moved(search, job, node, count, roomy)


def _grown(search: Search, job: Job, node: Node, count: int) -> Iterator[Way]:
    """On its own hosts where they have enough, else on as few more as possible."""
    if not job.workers and count - job.num_gpus <= node.idle:
        yield _running_way(search, job, node, count)
        return
    everywhere = search.settings.placement == "count_only"
    most = len(search.snapshot.nodes) if everywhere else job.max_workers
    if most == 1 or not node.heard:
        return
    own = {w.node: w.num_gpus for w in placed_on(job)}
    near = [n for n in nodes_for(search.snapshot, job) if n.heard and (everywhere or n.gpu_type == node.gpu_type)]
    if workers := spread(count, near, most, own):
        yield _running_way(search, job, node, count, workers)


def _moved(search: Search, job: Job, node: Node, count: int, roomy: _Roomy) -> Iterator[Way]:
    """Sequence D: to a node that holds the whole new count; to the same count only if that is on other GPUs (X2).

    Not where the job's own speed is unknown, nor, for one of unknown length, to another GPU type: what it
    gains there could not be told.
    """
    if job.pinned is not None or not node.heard:
        return
    own = {w.node for w in placed_on(job)}
    for kind in roomy.kinds:
        same = kind == node.gpu_type
        nearer = same and not job.workers and (count == job.num_gpus or count - job.num_gpus <= node.idle)
        if nearer or job.gpu_type not in (None, kind) or (job.iterations_left is None and not same):
            continue
        target = roomy.first(kind, count, own)
        known = search.snapshot.profiles.speed(job.type, node.gpu_type, job.num_gpus)
        if target is not None and known and search.snapshot.profiles.speed(job.type, kind, count):
            yield _running_way(search, job, target, count)


def _running_way(search: Search, job: Job, node: Node, count: int, workers: tuple[Worker, ...] = ()) -> Way:
    profiles, settings, own = search.snapshot.profiles, search.settings, {w.node for w in placed_on(job)}
    extra_s, hosts = _extra_s(search, job, node, workers), len(workers) or 1
    job_s = t_run(profiles, job, node.gpu_type, count, hosts=hosts) + extra_s
    pair = settings.makespan_scope == "pair"
    makespan, total = (job_s, job_s) if pair else search.times.replace(job.id, job_s)  # G1
    way = Way((GOOD, makespan), job, node, count, makespan, total, job_s, workers=workers if hosts > 1 else ())
    if profiles.speed(job.type, node.gpu_type, count) is None:
        return refused(way, no_speed(count, node))
    if settings.allow_noop or count == job.num_gpus:
        enough = settings.min_gain_factor * (reshape_cost_s(profiles, job) + extra_s)
        if why := _not_worth_it(search.times.seconds[job.id] - job_s, enough):
            return refused(way, why)
    if settings.tiebreak == "first":
        return way
    elsewhere = node.name not in own or any(w.node not in own for w in workers)
    # G4; a converged job loses ties (X10).
    key = (GOOD, makespan, total, job.growth.category == "CC", elsewhere, count, job.id, node.name)
    return way._replace(key=key)


def _extra_s(search: Search, job: Job, node: Node, workers: tuple[Worker, ...]) -> float:
    """What a change beyond the job's own hosts costs on top of a reshape.

    It trains on while further hosts are launched, but gains nothing yet: counted in full.
    """
    own = {w.node for w in placed_on(job)}
    if node.name not in own:
        return cross_host_s(search.snapshot.profiles, job)
    if any(w.node not in own for w in workers):
        return search.snapshot.profiles.overheads(job.type).k8s_init
    return 0.0


def _not_worth_it(gain: float, enough: float) -> str:
    """G6, doing nothing competes: why a gain in seconds is not enough; empty if it is.

    Only this job's time changes, so its gain is that of the sum and never below that of the makespan:
    one test covers both lines of 1.7.
    """
    if gain > enough:
        return ""
    if gain > 0:
        return f"gains only {seconds(gain)}, and a reshape must gain more than {seconds(enough)}"
    return f"ends {seconds(-gain)} later than if left as it is" if gain < 0 else "gains nothing"
