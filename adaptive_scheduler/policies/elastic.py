"""Seed 004's judgement: Algorithm 1 (incoming job, reshape down) and Algorithm 2 (reshape up).

As resolved in `algorithms.md` 1.6 and 1.7, with the ids of 1.8. The search is exhaustive, as printed;
O(1) per way through `RemainingTimes`. Called by the engine. All reshapes stay on their node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adaptive_scheduler.decision import Hold, Reshape, Start
from adaptive_scheduler.prediction import RemainingTimes, reshape_cost_s, t_new, t_run
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from adaptive_scheduler.ways import (
    GOOD,
    REFUSED,
    TO_MEASURE,
    Way,
    explain,
    gpus,
    impossible,
    no_speed,
    nodes_for,
    seconds,
)

INCOMING = "elastic.incoming"
RUNNING = "elastic.running"


def schedule_incoming(
    snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings, times: RemainingTimes | None = None
) -> Start | Hold:
    """Algorithm 1: the first GPUs of a waiting job, idle ones or with those of one running job.

    `times` saves working out the remaining times of all placed jobs again. A type without a known
    speed starts on as few GPUs as can be had, to be measured.
    """
    times = times or RemainingTimes.of(snapshot)
    if why := impossible(snapshot, job):
        return Hold(job.id, explain(INCOMING, why, [], None, times, snapshot.profiles))
    ways = list(_incoming_ways(snapshot, job, now, settings, times))
    best = min(ways, key=lambda way: way.key)
    if best.rank == REFUSED:
        sentence = _hold_sentence(snapshot, job, now, settings)
        return Hold(job.id, explain(INCOMING, sentence, ways, None, times, snapshot.profiles))
    return Start(
        job=job.id,
        node=best.node.name,
        num_gpus=best.num_gpus,
        explanation=explain(INCOMING, _start_sentence(best), ways, best, times, snapshot.profiles),
        victim=best.victim.id if best.victim else None,
        victim_num_gpus=best.keeps if best.victim else None,
    )


def schedule_running(snapshot: ClusterSnapshot, now: float, settings: Settings) -> Reshape | None:
    """Algorithm 2: the one running job that gets idle GPUs of its node, or None if nobody gains enough."""
    if not any(node.idle for node in snapshot.nodes):
        return None
    times = RemainingTimes.of(snapshot)
    ways = list(_running_ways(snapshot, now, settings, times))
    best = min(ways, key=lambda way: way.key, default=None)
    if best is None or best.rank == REFUSED:
        return None
    sentence = (
        f"{best.job.id} grows from {best.job.num_gpus} to {gpus(best.num_gpus)} on {best.node.name} and is then "
        f"predicted to end in {seconds(best.job_s)} instead of {seconds(times.seconds[best.job.id])}; "
        f"makespan {seconds(best.makespan_s)}."
    )
    explanation = explain(RUNNING, sentence, ways, best, times, snapshot.profiles)
    return Reshape(best.job.id, best.node.name, best.num_gpus, explanation)


def _incoming_ways(
    snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings, times: RemainingTimes
) -> Iterator[Way]:
    givers = _all_givers(snapshot, now, settings)
    scope = times if settings.makespan_scope == "cluster" else RemainingTimes({})  # G1
    for node in nodes_for(snapshot, job):
        if not node.schedulable:
            continue
        for count in job.optional:
            rank = TO_MEASURE if snapshot.profiles.speed(job.type, node.gpu_type, count) is None else GOOD
            job_s = t_new(snapshot.profiles, job, node.gpu_type, count)
            makespan, total = scope.replace(job.id, job_s)
            key = _key(rank, settings, makespan, total, count, node, "")
            alone = Way(key, job, node, count, makespan, total, job_s)
            if count <= node.idle:
                yield alone
                continue
            need = count - node.idle
            can = _can_give(givers.get(node.name, {}), need, settings)
            if not can:
                wait = f"would have to wait: {node.idle} of {gpus(count)} idle on {node.name}, "
                yield _refused(alone, f"{wait}no running job there can give {_exactly(need, settings)}")
            for victim, keeps in can:
                yield _with_victim(alone, victim, keeps, snapshot, settings, scope)


def _with_victim(
    alone: Way, victim: Job, keeps: int, snapshot: ClusterSnapshot, settings: Settings, scope: RemainingTimes
) -> Way:
    _, job, node, count, _, _, job_s, *_ = alone
    profiles, trains_on_s = snapshot.profiles, 0.0
    if settings.refined:  # G5: the victim trains on during the launch, the newcomer waits for its checkpoint and exit
        theirs = profiles.overheads(victim.type)
        job_s += theirs.ckpt + theirs.proc_term
        trains_on_s = profiles.overheads(job.type).k8s_init
    makespan, total = scope.replace(victim.id, t_run(profiles, victim, node.gpu_type, keeps, trains_on_s))
    makespan, total = max(makespan, job_s), total + job_s
    key = _key(alone.key[0], settings, makespan, total, count, node, victim.id)
    way = Way(key, job, node, count, makespan, total, job_s, victim, keeps)
    if profiles.speed(victim.type, node.gpu_type, keeps) is None:
        return _refused(way, no_speed(keeps, node, victim.id))
    return way


def _key(
    rank: int, settings: Settings, makespan: float, total: float, count: int, node: Node, victim: str
) -> tuple[Any, ...]:
    """What G4 compares. A way still to be measured is judged by how few GPUs it needs.

    `min` keeps the first of equals, which is what the printed strict `<` does.
    """
    if rank == TO_MEASURE:
        return (rank, count, bool(victim), makespan, total, node.name, victim)
    if settings.tiebreak == "first":
        return (rank, makespan)
    return (rank, makespan, total, bool(victim), count, node.name, victim)


def _refused(way: Way, why: str) -> Way:
    key = (REFUSED, way.num_gpus, -way.node.idle, way.node.name, way.victim.id if way.victim else "", way.keeps)
    return way._replace(key=key, refused=why)


Givers = dict[int, list[tuple[Job, int]]]
"""The paper's hash table of one node: GPUs to give -> who could, and what each would keep."""


def _all_givers(snapshot: ClusterSnapshot, now: float, settings: Settings) -> dict[str | None, Givers]:
    by_node: dict[str | None, Givers] = {}
    for job in snapshot.placed:
        if not _why_not(job, now):
            givers = by_node.setdefault(job.node, {})
            for gives in removable(job, settings):
                givers.setdefault(gives, []).append((job, job.num_gpus - gives))
    return by_node


def _can_give(givers: Givers, need: int, settings: Settings) -> list[tuple[Job, int]]:
    """Exactly what is needed, or with `over_release` also more (G3)."""
    if not settings.over_release:
        return givers.get(need, [])
    return [who for gives in sorted(givers) if gives >= need for who in givers[gives]]


def removable(job: Job, settings: Settings) -> list[int]:
    """How many GPUs the job can give away, ascending, so that it keeps an allowed count (G2)."""
    gives = [job.num_gpus - keeps for keeps in reversed(job.optional) if keeps < job.num_gpus]
    if settings.removal_range == "printed":
        return [g for g in gives if job.optional[0] <= g <= job.optional[-1]]
    return gives


def _running_ways(snapshot: ClusterSnapshot, now: float, settings: Settings, times: RemainingTimes) -> Iterator[Way]:
    for job in snapshot.placed:
        node = snapshot.node.get(job.node or "")
        if node is None or not node.idle or _why_not(job, now):
            continue
        for count in job.optional:
            if 0 < count - job.num_gpus <= node.idle:
                yield _running_way(snapshot, job, node, count, settings, times)


def _running_way(
    snapshot: ClusterSnapshot, job: Job, node: Node, count: int, settings: Settings, times: RemainingTimes
) -> Way:
    job_s = t_run(snapshot.profiles, job, node.gpu_type, count)
    makespan, total = (job_s, job_s) if settings.makespan_scope == "pair" else times.replace(job.id, job_s)  # G1
    key = (GOOD, makespan, total, count, job.id) if settings.tiebreak == "full" else (GOOD, makespan)  # G4
    way = Way(key, job, node, count, makespan, total, job_s)
    if snapshot.profiles.speed(job.type, node.gpu_type, count) is None:
        return _refused(way, no_speed(count, node))
    if settings.allow_noop and (why := _not_worth_it(snapshot, job, times.seconds[job.id] - job_s, settings)):
        return _refused(way, why)
    return way


def _not_worth_it(snapshot: ClusterSnapshot, job: Job, gain: float, settings: Settings) -> str:
    """G6, doing nothing competes: why a gain in seconds is not enough; empty if it is.

    Only this job's time changes, so its gain is that of the sum and never below that of the makespan:
    one test covers both lines of 1.7.
    """
    enough = settings.min_gain_factor * reshape_cost_s(snapshot.profiles, job)
    if gain > enough:
        return ""
    if gain > 0:
        return f"gains only {seconds(gain)}, and a reshape must gain more than {seconds(enough)}"
    return f"ends {seconds(-gain)} later than if left as it is" if gain < 0 else "gains nothing"


def _why_not(job: Job, now: float) -> str:
    """Why a placed job may not be reshaped now; empty if it may."""
    if job.leased:
        return "has an operation under way"
    if job.state != "running":
        return f"is {job.state}"
    if job.wanted is not None:
        return "keeps the count an operator wished"
    if job.cooling_until > now:
        return f"was reshaped a short while ago and is left alone for {seconds(job.cooling_until - now)} more"
    return ""


def _exactly(need: int, settings: Settings) -> str:
    return f"{need} or more" if settings.over_release else f"exactly {need}"


def _start_sentence(way: Way) -> str:
    source = f"{gpus(way.num_gpus)} of {way.node.name}"
    if way.victim:
        given = way.victim.num_gpus - way.keeps
        whose = "all" if given >= way.num_gpus else str(given)
        source += f", {whose} of them from {way.victim.id}, which goes from {way.victim.num_gpus} to {way.keeps}"
    if way.rank == TO_MEASURE:
        return f"{way.job.id} starts on {source}, and is measured: {no_speed(way.num_gpus, way.node)}."
    return (
        f"{way.job.id} starts on {source}; predicted to end in {seconds(way.job_s)}, "
        f"makespan {seconds(way.makespan_s)}."
    )


def _hold_sentence(snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings) -> str:
    """What is missing on the node that comes nearest, and who there could give it but may not."""
    node = max((n for n in nodes_for(snapshot, job) if n.schedulable), key=lambda n: (n.idle, n.name))
    count = job.optional[0]
    need = count - node.idle
    text = (
        f"{job.id} waits: it needs {gpus(count)}; {node.idle} {'is' if node.idle == 1 else 'are'} idle on node "
        f"{node.name}{', as many as anywhere' if len(snapshot.nodes) > 1 else ''}, and no running job "
        f"there can give {_exactly(need, settings)}."
    )
    there = sorted((j for j in snapshot.placed if j.node == node.name), key=lambda j: j.id)
    hints = [_hint(snapshot, other, node, need, now, settings) for other in there[:3]]
    more = f" Nor can {len(there) - 3} more there." if len(there) > 3 else ""
    return " ".join([text, *hints]) + more


def _hint(snapshot: ClusterSnapshot, other: Job, node: Node, need: int, now: float, settings: Settings) -> str:
    gives = removable(other, settings)
    if why := _why_not(other, now):
        return f"{other.id} {why}."
    if not gives:
        return f"{other.id} has its smallest count, {other.num_gpus}."
    enough = [g for g in gives if g == need or (settings.over_release and g > need)]
    if enough:
        return f"{other.id} could, but there is {no_speed(other.num_gpus - enough[0], node, other.id)}."
    return f"{other.id} can give only {' or '.join(map(str, gives))}."
