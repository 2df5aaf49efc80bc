"""Decides for which GPUs of the cluster to ask by placeholder pods, and which to give back. Pure.

A placeholder is a small pod that requests one GPU, so that Kubernetes keeps it for our jobs. Asked for are
the GPUs that the scheduler would use if they were ours: what a waiting job needs at least at normal priority, all
beyond at low priority (opportunistic).
Given back is what the cluster takes (a placeholder is evicted), what somebody else waits for and only an opportunistic
placeholder holds, and what has been idle for a while. Called by the coordinator; nothing is done here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from adaptive_scheduler.decision import Decision, Hold, Move, Reshape, Start, placed_on, workers_of
from adaptive_scheduler.engine import decide_part
from adaptive_scheduler.pools import NO_POOL, held_by_owner, parts_by_pool
from adaptive_scheduler.rights.rights import NO_HELP
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node

PATIENCE_S = 10.0
"""How long a placeholder on a node with free GPUs may wait for them before it is taken for refused."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One placeholder pod. `gpu` is None until the node's agent has told which GPU it holds."""

    name: str
    pool: str  # namespace and queue
    node: str | None  # where it is, or is to be; None: wherever there is room
    gpu: str | None = None
    job: str = ""  # for which it was asked
    group: str = ""  # placeholders that were asked for together
    opportunistic: bool = False
    held: bool = False  # its pod runs
    going: bool = False  # it has been asked back, or is given back already
    evicted: bool = False  # somebody deletes its pod
    age_s: float = 0.0
    idle_s: float | None = None  # how long its GPU has had no job; None: it has one
    refused: str = ""  # why the API server, or Volcano, does not let it be


@dataclass(frozen=True, slots=True)
class ForeignWait:
    """GPUs that somebody else waits for: `pods` times `gpus` on one node each."""

    name: str
    gpus: int
    node: str | None = None  # the only node that it may go to
    pods: int = 1


@dataclass(frozen=True)
class PoolState:
    """All that is known of placeholders beside the snapshot."""

    placeholders: tuple[Placeholder, ...] = ()
    free: Mapping[str, int] = field(default_factory=dict)  # by node: GPUs that no pod has requested
    waits: tuple[ForeignWait, ...] = ()
    resting: frozenset[str] = frozenset()  # nodes of which others got GPUs just now: nothing grows there
    # By pool: placeholders that it was let have lately, if it was refused more.
    most: Mapping[str, int] = field(default_factory=dict)
    idle_s: float = 60.0  # after which an idle GPU is given back


@dataclass(frozen=True, slots=True)
class AskForGpus:
    """Ask for `count` GPUs together: `firm` ones at normal priority, all or none, the others at low priority."""

    pool: str
    job: str
    node: str | None
    count: int
    firm: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give one reserved GPU back, once no training uses it. `refused`: the cluster did not let us have it. `rests`: its
    node, of which somebody else is to get it."""

    name: str
    why: str
    refused: bool = False
    rests: str | None = None


def plan_placeholders(
    snapshot: ClusterSnapshot, state: PoolState, now: float, settings: Settings, may_ask: bool = True
) -> tuple[list[GiveBack], list[AskForGpus]]:
    """Return what to give back and what to ask for. Each placeholder is given back once.

    What to ask for takes a decision for each pool; without `may_ask` it is nothing.
    """
    wanted = _wanted_back(snapshot, state)
    if not may_ask:
        return wanted, []
    gone = {one.name for one in wanted}
    left = tuple(one for one in state.placeholders if one.name not in gone and not one.going)
    asks = _ask_for_all(snapshot, replace(state, placeholders=left), now, settings)
    return wanted, asks


# giving back


def _wanted_back(snapshot: ClusterSnapshot, state: PoolState) -> list[GiveBack]:
    found: dict[str, GiveBack] = {}
    staying = [one for one in state.placeholders if not one.going]
    for one in staying:
        if why := _why_back(one, snapshot, state):
            refused = _is_refused(one, state) and why == _why_refused(one)
            found[one.name] = GiveBack(one.name, why, refused, one.node if one.evicted else None)
    _serve_others(snapshot, state, staying, found)
    return [*found.values()]


def _why_back(one: Placeholder, snapshot: ClusterSnapshot, state: PoolState) -> str:
    if one.evicted:
        return "the cluster takes it back"
    if one.held and one.idle_s is not None and one.idle_s >= state.idle_s:
        return f"no training has used it for {one.idle_s:.0f} s"
    if one.held:
        return ""
    job = snapshot.job.get(one.job)
    waits = job is not None and job.state == "submitted" and not job.suspended
    grows = job is not None and job.state == "running" and one.opportunistic
    if not (waits or grows):
        return "its job no longer needs it"
    if _is_refused(one, state):
        return _why_refused(one)
    others = (wait.name for wait in state.waits if wait.node in (None, one.node))
    return next((f"{name} waits for it" for name in others), "") if one.opportunistic else ""


def _is_refused(one: Placeholder, state: PoolState) -> bool:
    """True for one on a node with free GPUs that the cluster does not let be.

    Not what a job needs at least once its pool can have no more: that stays as the question why it waits.
    """
    late = bool(one.refused or one.age_s > PATIENCE_S)
    return not one.held and one.node is not None and late and (one.opportunistic or one.pool not in state.most)


def _why_refused(one: Placeholder) -> str:
    return one.refused or "the cluster did not place it"


def _serve_others(
    snapshot: ClusterSnapshot, state: PoolState, staying: Sequence[Placeholder], found: dict[str, GiveBack]
) -> None:
    """Give opportunistic GPUs back where others wait for as many, fewest first; nothing where that would not help."""
    coming = Counter(one.node for one in state.placeholders if one.going and one.held)
    coming.update(one.node for one in staying if one.name in found and one.held)
    room = {name: state.free.get(name, 0) + coming[name] for name in snapshot.node}
    lent: dict[str, list[Placeholder]] = {}
    for one in staying:
        if one.opportunistic and one.held and one.node is not None and one.name not in found:
            lent.setdefault(one.node, []).append(one)
    for ones in lent.values():  # idle ones first, then those of the job that has most of them
        held = Counter(_job_that_uses(snapshot, one) for one in ones)
        ones.sort(key=lambda one: (one.idle_s is None, -held[_job_that_uses(snapshot, one)], one.name))
    for wait in [*state.waits, *_waits_of_pools(state)]:
        for _ in range(wait.pods):
            _serve_wait(wait, room, lent, found)


def _serve_wait(
    wait: ForeignWait, room: dict[str, int], lent: dict[str, list[Placeholder]], found: dict[str, GiveBack]
) -> None:
    names = [name for name in room if wait.node in (None, name)]
    fits = [name for name in names if room[name] >= wait.gpus]
    if fits:
        room[min(fits, key=lambda name: (room[name], name))] -= wait.gpus
        return
    lacks = {
        name: wait.gpus - room[name] for name in names if len(_lent_on(lent, name, wait)) >= wait.gpus - room[name]
    }
    if not lacks:
        return
    node = min(lacks, key=lambda name: (lacks[name], name))
    for one in _lent_on(lent, node, wait)[: lacks[node]]:
        found[one.name] = GiveBack(one.name, f"{wait.name} waits for it", rests=node)
        lent[node].remove(one)
    room[node] = 0


def _lent_on(lent: Mapping[str, list[Placeholder]], node: str, wait: ForeignWait) -> list[Placeholder]:
    """A pool that waits takes from other pools only: in its own the scheduler decides."""
    return [one for one in lent.get(node, ()) if one.pool != wait.name]


def _waits_of_pools(state: PoolState) -> list[ForeignWait]:
    """Return what placeholders of waiting jobs wait for: to all other pools they are somebody else."""
    together: Counter[tuple[str, str, str | None]] = Counter()
    for one in state.placeholders:
        if not (one.held or one.going or one.opportunistic or one.refused):
            together[one.pool, one.group, one.node] += 1
    return [ForeignWait(pool, count, node) for (pool, _, node), count in together.items()]


def _job_that_uses(snapshot: ClusterSnapshot, one: Placeholder) -> str:
    node = snapshot.node.get(one.node or "")
    return next((gpu.held_by or "" for gpu in node.gpus if gpu.id == one.gpu), "") if node is not None else ""


# asking


def _ask_for_all(snapshot: ClusterSnapshot, state: PoolState, now: float, settings: Settings) -> list[AskForGpus]:
    asked: list[AskForGpus] = []
    free = dict(state.free)
    for one in state.placeholders:  # what was asked for and does not run yet
        if not one.held and one.node is not None and one.node in free:
            free[one.node] = max(0, free[one.node] - 1)
    parts = parts_by_pool(snapshot)
    held = {pool: held_by_owner(part) for pool, part in parts.items()}
    in_all = sum(held.values(), Counter[JobOwner]())
    for pool in sorted({job.pool for job in snapshot.where(_may_want)}):
        part = parts[pool].then(elsewhere=in_all - held[pool])
        new = _ask_for_pool(part, state, pool, free, now, settings)
        for ask in new:
            if ask.node is not None:
                free[ask.node] = free.get(ask.node, 0) - ask.count
        asked += new
    return asked


def _may_want(job: Job) -> bool:
    """True for a job of a pool that may start or grow."""
    return job.pool != NO_POOL and not job.uses_cpu and not job.suspended and not job.busy


def _ask_for_pool(
    part: ClusterSnapshot, state: PoolState, pool: str, free: Mapping[str, int], now: float, settings: Settings
) -> list[AskForGpus]:
    """Return what one pool asks for: what the scheduler would use beyond what it holds, were it free to use."""
    ours = [one for one in state.placeholders if one.pool == pool]
    pending = {one.job for one in ours if not one.held or one.gpu is None}
    most = state.most.get(pool)
    left = None if most is None else max(0, most - len(ours))
    decisions = decide_part(_with_free(part, pool, free, left), now, settings)
    waited_for = any(wait.pods for wait in state.waits)
    asks: list[AskForGpus] = []
    idle = {node.name: node.idle for node in part.nodes}
    for decision in decisions:
        for name, count in _gpus_used(part, decision).items():
            has = max(0, idle.get(name, 0))
            idle[name] = idle.get(name, 0) - count
            firm = max(0, _least_gpus(part, decision) - has)
            lacks = min(count - has, firm) if waited_for or name in state.resting else count - has
            lacks = lacks if left is None else min(lacks, left)
            if lacks > 0 and decision.job not in pending:
                asks.append(AskForGpus(pool, decision.job, name, lacks, min(firm, lacks)))
                left = None if left is None else left - lacks
    return asks or _ask_anywhere(part, decisions, pending)


def _with_free(part: ClusterSnapshot, pool: str, free: Mapping[str, int], most: int | None) -> ClusterSnapshot:
    """Return the part with free GPUs of the cluster as idle ones of the pool, at most so many of each node."""
    counts = {name: count if most is None else min(most, count) for name, count in free.items()}
    return replace(part, nodes=tuple(_with_free_gpus(node, pool, counts.get(node.name, 0)) for node in part.nodes))


def _with_free_gpus(node: Node, pool: str, count: int) -> Node:
    gpus: list[Gpu] = []
    for gpu in node.gpus:
        if count and gpu.pool == NO_POOL and gpu.used_by_others and gpu.job is None and gpu.held_by is None:
            gpus.append(Gpu(gpu.id, "idle", pool=pool))
            count -= 1
        else:
            gpus.append(gpu)
    return replace(node, gpus=tuple(gpus))


def _gpus_used(part: ClusterSnapshot, decision: Decision) -> Counter[str]:
    """Return by node how many idle GPUs the decision uses; less than nothing where it frees some."""
    used: Counter[str] = Counter()
    if not isinstance(decision, Start | Reshape | Move):
        return used
    for worker in workers_of(decision):
        used[worker.node] += worker.num_gpus
    if isinstance(decision, Reshape):
        for worker in placed_on(part.job[decision.job]):
            used[worker.node] -= worker.num_gpus
    for victim in decision.victims if isinstance(decision, Start) else ():
        used[decision.node] -= part.job[victim.job].num_gpus - victim.num_gpus
    return used


def _least_gpus(part: ClusterSnapshot, decision: Decision) -> int:
    """Return how many GPUs the job of a decision cannot do without: what it starts with if it must not be stopped."""
    if not isinstance(decision, Start):
        return 0
    job = part.job[decision.job]
    return min(decision.num_gpus, job.optional[0]) if job.stoppable else decision.num_gpus


def _ask_anywhere(part: ClusterSnapshot, decisions: Iterable[Decision], pending: set[str]) -> list[AskForGpus]:
    """Return what the first waiting job asks for where no node has room: the cluster may make some, or bring a node."""
    holds = [decision for decision in decisions if isinstance(decision, Hold)]
    held = {decision.job for decision in holds if decision.explanation.algorithm not in NO_HELP}
    waiting = [job for job in part.queue if job.id in held and not job.uses_cpu]
    if not waiting or any(job.id in pending for job in waiting):
        return []
    job = waiting[0]
    if sum(gpu.state == "idle" for node in part.nodes for gpu in node.gpus) >= job.optional[0]:
        return []  # it waits for something else
    return [AskForGpus(job.pool, job.id, job.pinned, job.optional[0], job.optional[0])] if job.optional[0] else []
