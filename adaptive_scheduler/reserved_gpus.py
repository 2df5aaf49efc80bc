"""Says during one decision which GPUs are kept for reservations, and what each job may have beside them.

Some time before a reservation begins, its idle GPUs are hidden from all other jobs; `policies/room.py` frees what is
missing. Until then others may use them if they can give them up in time: a job that cannot starts only where enough is
left for all reservations to come. Without reservations every answer is what was given. Pure; times on the clock of
the snapshot."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from adaptive_scheduler.candidates import gpus, nodes_for
from adaptive_scheduler.decision import Explanation, Hold, Move, Reshape, Start, gpus_on, idle_after, placed_on
from adaptive_scheduler.models.prediction import cross_host_s, reshape_cost_s
from adaptive_scheduler.pools import has_pools
from adaptive_scheduler.reservation import Reservation
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

RESERVED = "reserved"
"""Algorithm of what is decided because of a reservation."""

LEAD_S = 60.0
"""Seconds before a reservation from which on its GPUs are freed, at least."""
LEAD_COSTS = 3.0
"""Likewise, as a multiple of what the slowest job there needs to be shrunk or moved."""
MOST_LEAD_S = 3600.0
SLACK_S = 1.0
"""Seconds by which the sum of two times may be off."""
LIMIT_MARGIN_S = 120.0
"""Seconds after its time limit by which a job has surely ended."""


def kept_gpus(job: Job, count: int) -> int:
    """Return how many of `count` GPUs a job cannot be made to give up for a reservation."""
    if not job.stoppable or job.preemption == "never" or (job.stays and job.relaunches):
        return count
    if job.preemption == "shrink" or job.stays or job.gpus_per_pod:
        return min(count, min(job.optional, default=count))
    return 0


def why_kept(job: Job) -> str:
    """Return why a job cannot give up all its GPUs."""
    if not job.stoppable:
        return "it has not shown that it saves and resumes"
    if job.keeps_pod:
        return "its pod cannot be made anew"
    if job.stays:
        return "its checkpoints lie in its pod and would go with it"
    return f"its preemption is {job.preemption}" if job.preemption != "any" else "a gang keeps its first pods"


def ends_by_s(job: Job, now: float) -> float:
    """Return when a job has surely ended, by its time limit; infinite without one."""
    if job.time_limit_s is None:
        return math.inf
    return now + max(0.0, job.time_limit_s - job.running_s) + LIMIT_MARGIN_S


def in_words(seconds: float) -> str:
    """Return a span for people: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class _FixedGpus(NamedTuple):
    """GPUs of a node that a job of a user keeps until it ends."""

    user: str
    gpus: int
    ends_s: float


def _fixed_by_node(
    world: ClusterSnapshot, nodes: Iterable[Node], now: float, but: str = ""
) -> dict[str, list[_FixedGpus]]:
    """Return what jobs keep of each of these nodes, in one pass over the jobs. `but`: a job that does not count."""
    found: dict[str, list[_FixedGpus]] = {node.name: [] for node in nodes}
    for job in world.placed:
        if job.id == but:
            continue
        for name in _hosts_of(job) & found.keys():
            if kept := kept_gpus(job, gpus_on(job, name)):
                found[name].append(_FixedGpus(job.owner, kept, ends_by_s(job, now)))
    return found


def _hosts_of(job: Job) -> set[str]:
    return {worker.node for worker in placed_on(job)}


def _taken_at(
    at_s: float, reservations: Iterable[Reservation], fixed: Iterable[_FixedGpus]
) -> tuple[dict[str | None, int], dict[str | None, int]]:
    """Return by user the GPUs that are reserved at a moment, and those that jobs keep then."""
    reserved: dict[str | None, int] = defaultdict(int)
    kept: dict[str | None, int] = defaultdict(int)
    for one in reservations:
        if one.from_s <= at_s < one.until_s:
            reserved[one.user] += one.num_gpus
    for job in fixed:
        if job.ends_s > at_s:
            kept[job.user] += job.gpus
    return reserved, kept


def lead_s(world: ClusterSnapshot, node: str) -> float:
    """Return how long before a reservation the jobs of its node have to begin to give way."""
    costs = [
        reshape_cost_s(world.profiles, job) + cross_host_s(world.profiles, job)
        for job in world.placed
        if gpus_on(job, node) and not kept_gpus(job, 1)
    ]
    return min(MOST_LEAD_S, max(LEAD_S, LEAD_COSTS * max(costs, default=0.0)))


class ReservedGpus:
    """The reservations of one decision."""

    def __init__(self, snapshot: ClusterSnapshot, now: float) -> None:
        self._now = now
        self.coming = tuple(one for one in snapshot.reservations if one.until_s > now and one.node in snapshot.node)
        soon = [one for one in self.coming if one.from_s - now <= MOST_LEAD_S]
        leads = {name: lead_s(snapshot, name) for name in {one.node for one in soon}}
        self.due = tuple(one for one in soon if one.from_s - leads[one.node] <= now)
        """Those whose GPUs are kept, or being freed."""
        self.users = sorted({one.user for one in self.due if one.user is not None})
        self.kept_by_node: dict[str, dict[str | None, int]] = {}
        """By node and user the GPUs that are kept now."""
        for one in self.due:
            here = self.kept_by_node.setdefault(one.node, {})
            here[one.user] = here.get(one.user, 0) + one.num_gpus
        self._spare: tuple[ClusterSnapshot, dict[str, Mapping[str | None, int]]] | None = None
        self._views: dict[object, tuple[ClusterSnapshot, ClusterSnapshot]] = {}

    def spare(self, world: ClusterSnapshot, node: str) -> Mapping[str | None, int]:
        """Return by user the GPUs of a node that are kept, and that no job of the user has."""
        if self._spare is None or self._spare[0] is not world:
            self._spare = world, {}
        of_node = self._spare[1]
        if node not in of_node:
            kept = self.kept_by_node.get(node, {})
            of_node[node] = {user: max(0, count - _gpus_of_user(world, user, node)) for user, count in kept.items()}
        return of_node[node]

    def most_spare(self, world: ClusterSnapshot, job: Job) -> int:
        """Return the most GPUs that are kept for the user of a waiting job and that no job has, on as many nodes as the
        job may spread over."""
        if job.uses_cpu or job.owner not in self.users:
            return 0
        names = {name for name, kept in self.kept_by_node.items() if job.owner in kept}
        nodes = [node for node in nodes_for(world, job) if node.name in names]
        spare = sorted((self.spare(world, node.name).get(job.owner, 0) for node in nodes), reverse=True)
        return sum(spare[: max(1, job.max_workers)])

    # what a job sees

    def seen_by(self, world: ClusterSnapshot, job: Job | None = None, user: str | None = None) -> ClusterSnapshot:
        """Return the snapshot as a job sees it, or any job of a user, or all that have reserved nothing."""
        if not self.coming:
            return world
        whose = user if job is None else job.owner
        viewer = whose if any(one.user == whose for one in self.due) else None
        closed = frozenset[str]() if job is None else self._closed_nodes(world, job)
        if not self.due and not closed:
            return world
        key = viewer, closed
        known = self._views.get(key)
        if known is None or known[0] is not world:
            known = self._views[key] = world, self._view_for(world, viewer, closed)
        return known[1]

    def _view_for(self, world: ClusterSnapshot, viewer: str | None, closed: Collection[str]) -> ClusterSnapshot:
        most = self.kept_by_node
        seen: dict[str, Node] = {}
        protected: dict[str, Job] = {}
        for name in sorted(most.keys() | closed):
            node = world.node[name]
            kept = most.get(name, {})
            of_others = {user: count for user, count in kept.items() if user is None or user != viewer}
            hidden = sum(max(0, count - _gpus_of_user(world, user, node.name)) for user, count in of_others.items())
            if node.name in closed or hidden > node.idle:
                whose = " and ".join(sorted({one.whose for one in self.coming if one.node == node.name}))
                seen[name] = replace(node, kept_for=f"the reservation of {whose}")
            elif hidden:
                seen[name] = idle_after(node, hidden)
            for user, count in of_others.items():
                protected |= {job.id: job for job in _protected_jobs(world, user, node.name, count)}
        jobs = tuple(protected.get(job.id, job) for job in world.jobs) if protected else world.jobs
        nodes = tuple(seen.get(node.name, node) for node in world.nodes)
        return world.then(nodes=nodes, jobs=jobs)

    def protects(self, world: ClusterSnapshot, job: Job) -> bool:
        """Return whether a job has GPUs that are reserved for its user."""
        most = self.kept_by_node
        return any(job.owner in most.get(worker.node, {}) for worker in placed_on(job))

    # jobs that cannot give GPUs up in time

    def _room_for(self, world: ClusterSnapshot, node: Node, job: Job) -> float:
        """Return the most GPUs of a node that a job may keep to its end; infinite if nobody has reserved any."""
        here = [one for one in self.coming if one.node == node.name]
        ends_s = ends_by_s(job, self._now)
        times = {max(self._now, one.from_s) for one in here if one.user != job.owner and one.from_s < ends_s}
        if not times:
            return math.inf
        fixed = _fixed_by_node(world, [node], self._now, but=job.id)[node.name]
        rooms = list[int]()
        for at_s in times:
            reserved, kept = _taken_at(at_s, here, fixed)
            others = (reserved.keys() | kept.keys()) - {job.owner}
            taken = sum(max(reserved[user], kept[user]) for user in others)
            rooms.append(node.healthy - taken - kept[job.owner])
        return max(0, min(rooms))

    def _closed_nodes(self, world: ClusterSnapshot, job: Job) -> frozenset[str]:
        """Return the nodes on which there is too little room for what a job keeps."""
        keeps = kept_gpus(job, max(job.optional, default=0))
        if not keeps or job.uses_cpu:
            return frozenset()
        names = {one.node for one in self.coming}
        return frozenset(name for name in names if self._room_for(world, world.node[name], job) < keeps)

    def capped(self, world: ClusterSnapshot, job: Job) -> Job:
        """Return a waiting job with the counts for which there is room somewhere; unchanged if there are none."""
        if not self.coming or job.uses_cpu or kept_gpus(job, 2) < 2:
            return job
        most = self._most_room(world, job)
        counts = tuple(count for count in job.optional if count <= most)
        return job if counts == job.optional or not counts else replace(job, optional=counts)

    def _most_room(self, world: ClusterSnapshot, job: Job) -> float:
        nodes = [node for node in nodes_for(world, job) if node.schedulable]
        return max((self._room_for(world, node, job) for node in nodes), default=math.inf)

    def hold(self, world: ClusterSnapshot, job: Job) -> Hold | None:
        """Return why a waiting job that could not give its GPUs up in time may not start; None if it may."""
        least = min(job.optional, default=0)
        if not self.coming or job.uses_cpu or not kept_gpus(job, least) or self._most_room(world, job) >= least:
            return None
        names = {node.name for node in nodes_for(world, job)}
        near = [one for one in self.coming if one.user != job.owner and one.node in names]
        sentence = (
            f"{job.id} waits: {_words_about(near, self._now)}, and it could not give them up in time, as "
            f"{why_kept(job)}. "
            "With a time limit that ends before, it can start now."
        )
        return Hold(job.id, Explanation(RESERVED, sentence))

    def permits(self, world: ClusterSnapshot, change: Start | Reshape | Move) -> bool:
        """Return whether an operation of a plan leaves enough for all reservations to come."""
        job = world.job[change.job]
        if not self.coming or kept_gpus(job, 1) == 0:
            return True
        grows = change.num_gpus > job.num_gpus
        return not grows or self._room_for(world, world.node[change.node], job) >= kept_gpus(job, change.num_gpus)

    def never_growing(self, world: ClusterSnapshot) -> Sequence[int]:
        """Return the rows of the jobs that would keep what they grow into."""
        if not self.coming:
            return ()
        return [row for row, job in enumerate(world.jobs) if job.preemption == "never"]

    # for people

    def told(self, world: ClusterSnapshot, job: Job, answer: Hold) -> Hold:
        """Say with the reason to wait that GPUs which are idle are reserved."""
        if not self.due or job.uses_cpu:
            return answer
        least = min(job.optional, default=0)
        names = {node.name for node in nodes_for(world, job) if 0 < least <= node.idle}
        seen = self.seen_by(world, job)
        hidden = {name for name in names if not seen.node[name].open or seen.node[name].idle < least}
        hidden |= {one.node for one in self.due if one.user is None} & {node.name for node in nodes_for(world, job)}
        near = [one for one in self.due if one.node in hidden and one.user != job.owner]
        if not near:
            return answer
        why = answer.explanation
        sentence = f"{why.sentence} {_words_about(near, self._now, capital=True)}."
        return replace(answer, explanation=replace(why, sentence=sentence))


def _words_about(reservations: Iterable[Reservation], now: float, capital: bool = False) -> str:
    parts = list[str]()
    for one in sorted(reservations, key=lambda one: (one.from_s, one.id))[:3]:
        begins = f" in {in_words(one.from_s - now)}" if one.from_s > now else ""
        lasts = in_words(one.until_s - max(now, one.from_s))
        verb = "is" if one.num_gpus == 1 else "are"
        parts.append(f"{gpus(one.num_gpus)} of {one.node} {verb} reserved for {one.whose}{begins} for {lasts}")
    return " and ".join(parts)


def _gpus_of_user(world: ClusterSnapshot, user: str | None, node: str) -> int:
    if user is None:
        return 0
    return sum(gpus_on(job, node) for job in world.placed_by_user.get(user, ()))


def _jobs_of(world: ClusterSnapshot, user: str) -> list[Job]:
    """Return the placed jobs of a user in the order in which reserved GPUs count as theirs: first what keeps its GPUs
    anyway, so that others can be freed."""
    return sorted(world.placed_by_user.get(user, ()), key=lambda job: (-kept_gpus(job, job.num_gpus), job.id))


def _protected_jobs(world: ClusterSnapshot, user: str | None, node: str, count: int) -> Iterator[Job]:
    """Yield the user's jobs that have reserved GPUs, as others see them: what is reserved of them may not be taken."""
    left = count
    if user is None:
        return
    for job in _jobs_of(world, user):
        has = gpus_on(job, node)
        if has and left > 0:
            keeps = job.num_gpus - has + min(has, left)
            left -= has
            yield replace(job, cooling_until=math.inf, grew_from=keeps)


def protected_part(world: ClusterSnapshot, reserved: ReservedGpus, node: str) -> Mapping[str, int]:
    """Return by job how many of its GPUs on a node are reserved for its user."""
    found: dict[str, int] = {}
    for user, count in reserved.kept_by_node.get(node, {}).items():
        left = count
        for job in _jobs_of(world, user) if user is not None else ():
            found[job.id] = min(gpus_on(job, node), left)
            left -= found[job.id]
    return found


# where a new one may be


class NoRoom(NamedTuple):
    """Says why GPUs cannot be reserved, and from when on they can be; None: not as things are."""

    why: str
    earliest_s: float | None


def find_room(
    world: ClusterSnapshot,
    now: float,
    wanted: Reservation,
    gpu_type: str | None = None,
    step_s: float = 60.0,
    offset_s: float = 0.0,
    num_nodes: int = 1,
) -> tuple[Reservation, ...] | NoRoom:
    """Return a reservation for each of so many nodes of one GPU type, or why there are none.

    `wanted`: what to have on each node; its own may be empty: any. The earliest time that is named is a whole multiple
    of `step_s` on a clock that is `offset_s` ahead.
    """
    nodes = [
        node
        for node in world.allowed(gpu_type, wanted.node or None)
        if _may_be_reserved(node) and not node.drained and node.healthy >= wanted.num_gpus
    ]
    if not _of_one_type(nodes, num_nodes):
        return NoRoom(_no_node(world, wanted, gpu_type, num_nodes), None)
    fixed = _fixed_by_node(world, nodes, now)
    reserved: dict[str, list[Reservation]] = {node.name: [] for node in nodes}
    for one in world.reservations:
        if one.node in reserved:
            reserved[one.node].append(one)
    fits = [node for node in nodes if _has_room(node, reserved[node.name], fixed[node.name], wanted)]
    fits.sort(key=lambda node: (-min(node.idle, wanted.num_gpus), node.healthy, node.name))
    if best := _of_one_type(fits, num_nodes):
        return tuple(replace(wanted, node=node.name) for node in best)
    fixed = {name: [_ending_later(one, now) for one in parts] for name, parts in fixed.items()}
    starts = {one.until_s for one in world.reservations} | {one.ends_s for parts in fixed.values() for one in parts}
    rounded = sorted({_rounded_up(one, step_s, offset_s) for one in starts if wanted.from_s < one < math.inf})
    earliest_s = _earliest_room(nodes, reserved, fixed, wanted, rounded, num_nodes)
    return NoRoom(_who_has_them(world, nodes, wanted), earliest_s)


def _earliest_room(
    nodes: Sequence[Node],
    reserved: Mapping[str, Sequence[Reservation]],
    fixed: Mapping[str, Sequence[_FixedGpus]],
    wanted: Reservation,
    starts: Sequence[float],
    num_nodes: int,
) -> float | None:
    """Return the first of these times, which rise, from which on so many nodes of one GPU type have room; None: never.

    A node is looked at again only where something on it begins, ends, or comes within the time that is wanted.
    """
    lasts_s = wanted.until_s - wanted.from_s
    changes = list[tuple[float, int]]()
    for position, node in enumerate(nodes):
        times = {one.ends_s for one in fixed[node.name]}
        for one in reserved[node.name]:
            times |= {one.from_s - lasts_s, one.from_s, one.until_s}
        changes += [(at_s, position) for at_s in times]
    changes.sort()
    times_of_changes = [at_s for at_s, _ in changes]
    with_room: dict[str, set[int]] = defaultdict(set)  # by GPU type
    changed: Collection[int] = range(len(nodes))
    for place, start_s in enumerate(starts):
        if place:
            first = bisect_left(times_of_changes, starts[place - 1] - SLACK_S)
            last = bisect_right(times_of_changes, start_s + SLACK_S)
            changed = {position for _, position in changes[first:last]}
        later = replace(wanted, from_s=start_s, until_s=start_s + lasts_s)
        for position in changed:
            node = nodes[position]
            if _has_room(node, reserved[node.name], fixed[node.name], later):
                with_room[node.gpu_type].add(position)
            else:
                with_room[node.gpu_type].discard(position)
        if any(len(found) >= num_nodes for found in with_room.values()):
            return start_s
    return None


def _of_one_type(nodes: Sequence[Node], count: int) -> list[Node]:
    """Return the first `count` nodes that have GPUs of one type, which are the first of all in order; else none."""
    by_type: dict[str, list[Node]] = {}
    for node in nodes:
        found = by_type.setdefault(node.gpu_type, [])
        found.append(node)
        if len(found) == count:
            return found
    return []


def _ending_later(fixed: _FixedGpus, now: float) -> _FixedGpus:
    """Return it with an end that still holds when somebody asks again: how long a job has trained is told in steps."""
    return fixed._replace(ends_s=fixed.ends_s + (fixed.ends_s - now + MOST_LEAD_S) / 32)


def _rounded_up(at_s: float, step_s: float, offset_s: float) -> float:
    return math.ceil((at_s + offset_s) / step_s) * step_s - offset_s


def _has_room(node: Node, here: Sequence[Reservation], fixed: Sequence[_FixedGpus], wanted: Reservation) -> bool:
    times = {wanted.from_s, *(one.from_s for one in here if wanted.from_s < one.from_s < wanted.until_s)}
    for at_s in times:
        reserved, kept = _taken_at(at_s, [*here, replace(wanted, node=node.name)], fixed)
        if sum(max(reserved[user], kept[user]) for user in reserved.keys() | kept.keys()) > node.healthy:
            return False
    return True


def _may_be_reserved(node: Node) -> bool:
    """Return whether a node has GPUs of its own: those of a pool are the cluster's to give."""
    return node.schedulable and not has_pools(node)


def _no_node(world: ClusterSnapshot, wanted: Reservation, gpu_type: str | None, num_nodes: int) -> str:
    if gpu_type and gpu_type not in (types := sorted({node.gpu_type for node in world.nodes if node.gpus})):
        return f"no node has GPUs of type {gpu_type!r}; there are {', '.join(types) or 'none'}"
    kind = f" {gpu_type}" if gpu_type else ""
    if wanted.node and wanted.node not in world.node:
        return f"there is no node {wanted.node!r}; `reshape nodes` lists all"
    if wanted.node and has_pools(world.node[wanted.node]):
        return (
            f"the GPUs of node {wanted.node} are shared with other pods of the cluster (mode pool), which no "
            "reservation of ours keeps away; the guarantee of a Volcano queue does"
        )
    where = f"node {wanted.node} has not" if wanted.node else "no node that takes work has"
    allowed = world.allowed(gpu_type, wanted.node or None)
    most = max((node.healthy for node in allowed if _may_be_reserved(node)), default=0)
    if num_nodes > 1 and most >= wanted.num_gpus:
        return f"there are no {num_nodes} nodes of one GPU type that have {gpus(wanted.num_gpus)}{kind} each"
    return f"{where} {wanted.num_gpus} working{kind} GPUs; at most {most} can be reserved together"


def _who_has_them(world: ClusterSnapshot, nodes: Sequence[Node], wanted: Reservation) -> str:
    """Name the reservations and the jobs that are in the way on the nodes that could be used."""
    names = {node.name for node in nodes}
    others = [
        f"{gpus(one.num_gpus)} of {one.node} for {one.whose}"
        for one in world.reservations
        if one.node in names and one.from_s < wanted.until_s and one.until_s > wanted.from_s
    ]
    kept = [
        job
        for job in world.placed
        if any(kept_gpus(job, gpus_on(job, name)) for name in _hosts_of(job) & names) and ends_by_s(job, 0.0) > 0
    ]
    # Their own user's jobs may stay on what is reserved: they are in the way only where nobody else's are.
    of_others = [job for job in kept if job.owner != wanted.user]
    jobs = [f"{job.id} ({why_kept(job)})" for job in (of_others if of_others or others else kept)]
    parts = [f"reserved then: {', '.join(sorted(others)[:5])}"] if others else []
    parts += [f"these jobs cannot be asked to give way: {', '.join(sorted(jobs)[:5])}"] if jobs else []
    return "; ".join(parts) or "other reservations are in the way"
