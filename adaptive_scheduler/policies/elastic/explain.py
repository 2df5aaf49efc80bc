"""Phrases the reasons of SideCar scheduling's decisions for people. Called by `algorithms.py`. Pure."""

from __future__ import annotations

import math

from adaptive_scheduler.candidates import (
    LATE,
    TO_MEASURE,
    RankedCandidate,
    gpus,
    no_speed,
    nodes_for,
    protected_gpus,
    reshape_obstacle,
    seconds,
)
from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import placed_on
from adaptive_scheduler.index import removable_counts
from adaptive_scheduler.models.prediction import RemainingTimes, pause_words
from adaptive_scheduler.policies.elastic.shrink import exactly, idle_pools
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.snapshot import Job, Node, Worker


def start_sentence(best: RankedCandidate, profiles: Profiles) -> str:
    source = _where(best)
    if best.victim:
        given = best.victim.num_gpus - best.keeps
        whose = "all" if given >= best.num_gpus else str(given)
        source += f", {whose} of them from {best.victim.id}, which goes from {best.victim.num_gpus} to {best.keeps}"
        if pause := pause_words(profiles, best.victim):
            source += f" ({pause})"
    if best.rank == TO_MEASURE:
        return f"{best.job.id} starts on {source}, and is measured: {no_speed(best.num_gpus, best.node)}."
    sentence = (
        f"{best.job.id} starts on {source}; predicted to end in {seconds(best.job_s)}, "
        f"makespan {seconds(best.makespan_s)}."
    )
    if best.rank == LATE:
        total = seconds(best.key[1])
        sentence += f" Every candidate breaks a deadline, this one by least: {best.refused}; "
        sentence += f"all are late by {total} together."
    return sentence


def growth_sentence(best: RankedCandidate, times: RemainingTimes, profiles: Profiles) -> str:
    job = best.job
    verb = f"grows from {job.num_gpus} to {_where(best, 'on')}"
    moves = not best.workers and best.node.name not in {w.node for w in placed_on(job)}
    if moves:
        source = f", {_hosts(job.workers)}," if job.workers else f" of {job.node}"
        verb = f"moves from {gpus(job.num_gpus)}{source} to {best.num_gpus} of {best.node.name}"
    pause = pause_words(profiles, job, moves)
    verb += f" ({pause})" if pause else ""
    return (
        f"{job.id} {verb} and is then predicted to end in {seconds(best.job_s)} instead of "
        f"{seconds(times.seconds[job.id])}; makespan {seconds(best.makespan_s)}."
    )


def wait_sentence(later: RankedCandidate, best: RankedCandidate) -> str:
    return (
        f"{later.job.id} waits: {gpus(later.num_gpus)} of {later.node.name} once the next job has ended lead to "
        f"makespan {seconds(later.makespan_s)} and sum {seconds(later.sum_s)}, a start on {gpus(best.num_gpus)} of "
        f"{best.node.name} now to {seconds(best.makespan_s)} and {seconds(best.sum_s)}."
    )


def hold_sentence(table: CostTable, job: Job, best: RankedCandidate | None) -> str:
    """Name the deadline in the way, or what is missing on the best node and jobs for which nodes are kept."""
    if best is not None and best.rank == LATE:
        return f"{job.id} waits: however it starts, a deadline is missed; at best {best.refused}."
    kept = {n.name: n.kept_for for n in nodes_for(table.snapshot, job) if n.schedulable and n.kept_for is not None}
    known = table.snapshot.job
    words = [
        f"node {name} is kept for {other}"
        + (f", which has waited {seconds(table.now - known[other].submit_s)}" if other in known else "")
        for name, other in sorted(kept.items())
    ]
    if not idle_pools(table, job):
        return f"{job.id} waits: {' and '.join(words)}."
    return " ".join([_missing(table, job), *(f"{w[0].upper()}{w[1:]}." for w in words)])


def like_sentence(job: Job, other: str) -> str:
    return f"{job.id} waits like {other}, which asks for the same: no node has it, and no running job can give it."


def _missing(table: CostTable, job: Job) -> str:
    """Say what is missing on the node with most idle GPUs, and why jobs there do not give it."""
    place = max(idle_pools(table, job), key=lambda p: (p.idle, p.node.name))
    count, need = job.optional[0], job.optional[0] - place.idle
    where = f"on node {place.node.name}{', as many as anywhere' if len(table.snapshot.nodes) > 1 else ''}"
    if len(place.nodes) > 1:
        where = "on all nodes together"
    text = (
        f"{job.id} waits: it needs {gpus(count)}; {place.idle} {'is' if place.idle == 1 else 'are'} idle {where}, "
        f"and no running job there can give {exactly(need, table.settings)}."
    )
    names = {n.name for n in place.nodes}
    there = sorted((j for j in table.snapshot.placed if j.node in names), key=lambda j: j.id)
    hints = [_hint(table, other, place.node, need) for other in there[:3]]
    more = f" Nor can {len(there) - 3} more there." if len(there) > 3 else ""
    return " ".join([text, *hints]) + more


def _hint(table: CostTable, other: Job, node: Node, need: int) -> str:
    now = table.now
    settings = table.settings
    gives, keeps = removable_counts(other, settings), protected_gpus(other, now)
    if not gives:
        return f"{other.id} has its smallest count, {other.num_gpus}."
    if keeps < (by_right := _kept_by_right(table, other)):
        return f"{other.id} keeps {by_right if by_right < other.num_gpus else 'its'} GPUs by right."
    enough = [g for g in gives if g == need or (settings.over_release != "never" and g > need)]
    bound = bool(reshape_obstacle(other, math.inf))  # also once it has cooled down
    if (enough or bound) and not any(other.num_gpus - g >= keeps for g in enough):
        return f"{other.id} {_why_kept(other, keeps, now)}."
    if enough and other.workers:
        return f"{other.id} would have nothing left on one of its nodes."
    if enough:
        return f"{other.id} could, but there is {no_speed(other.num_gpus - enough[0], node, other.id)}."
    return f"{other.id} can give only {' or '.join(map(str, gives))}."


def _kept_by_right(table: CostTable, job: Job) -> int:
    return 0 if table.kept_by_right is None else int(table.kept_by_right[table.row_of[job.id]])


def _why_kept(job: Job, keeps: int, now: float) -> str:
    if keeps == job.num_gpus:
        return reshape_obstacle(job, now)
    return f"keeps the {gpus(keeps)} it had before it grew for {seconds(job.cooling_until - now)} more"


def _where(best: RankedCandidate, word: str = "of") -> str:
    return gpus(best.num_gpus) + (f", {_hosts(best.workers)}" if best.workers else f" {word} {best.node.name}")


def _hosts(workers: tuple[Worker, ...]) -> str:
    return " and ".join(f"{w.num_gpus} on {w.node}" for w in workers)
