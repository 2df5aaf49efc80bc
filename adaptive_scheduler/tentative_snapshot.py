"""Applies accepted decisions to a snapshot, so that the next decision sees their effect.

Called by the engine, by policies that try a second step and by comparison policies. Pure."""

from __future__ import annotations

from dataclasses import replace

from adaptive_scheduler.decision import (
    Decision,
    End,
    Finish,
    Hold,
    Limit,
    Move,
    Requeue,
    Reshape,
    Start,
    Stay,
    gives_on,
    idle_after,
    placed_on,
    workers_of,
)
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node


def after(snapshot: ClusterSnapshot, *decisions: Decision) -> ClusterSnapshot:
    """Return the snapshot with GPUs reserved and jobs under an operation; GPUs yet to be released are not idle."""
    accepted = [decision for decision in decisions if not isinstance(decision, Hold)]
    if not accepted:
        return snapshot
    jobs, nodes = dict(snapshot.job), dict(snapshot.node)
    for decision in accepted:
        _apply(decision, jobs, nodes)
    later = snapshot.then(nodes=tuple(nodes.values()), jobs=tuple(jobs.values()))
    # Rebuilding these maps would cost more than a decision on a large cluster.
    vars(later).update(job=jobs, node=nodes)
    return later


def _apply(decision: Decision, jobs: dict[str, Job], nodes: dict[str, Node]) -> None:
    job = jobs[decision.job]
    if isinstance(decision, Start):
        for giver in decision.victims:
            victim = jobs[giver.job]
            keeps = giver.num_gpus
            workers = gives_on(victim, decision.node, victim.num_gpus - keeps)
            pods = victim.pods[: keeps // victim.gpus_per_pod] if victim.gpus_per_pod else ()
            jobs[victim.id] = replace(victim, num_gpus=keeps, workers=workers, pods=pods, busy=True)
    if isinstance(decision, Start | Reshape | Move):
        has = {w.node: w.num_gpus for w in placed_on(job)} if isinstance(decision, Reshape) else {}
        for worker in workers_of(decision):
            taken = worker.num_gpus - has.get(worker.node, 0)
            if worker.node in nodes:
                nodes[worker.node] = _fuller(nodes[worker.node], taken)
    jobs[job.id] = _changed(job, decision)


def _changed(job: Job, decision: Decision) -> Job:
    match decision:
        case Start():
            job = replace(job, state="initializing")
        case Stay():
            spent = decision.at_s if decision.spends_move else job.migrated_s
            return replace(job, migrated_s=spent, move_refused_s=decision.at_s)
        case Limit():
            return replace(job, cpu_limit=decision.cores, limit_until_s=None)  # just set: not to be renewed yet
        case Requeue() | Finish() | End():
            yields_to = decision.yields_to if isinstance(decision, Requeue) else ()
            return replace(job, node=None, num_gpus=0, workers=(), pods=(), busy=True, yields_to=yields_to)
    assert isinstance(decision, Start | Reshape | Move)
    workers = () if isinstance(decision, Move) else decision.workers
    return replace(job, node=decision.node, num_gpus=decision.num_gpus, workers=workers, busy=True)


def _fuller(node: Node, taken: int) -> Node:
    return idle_after(node, min(node.idle, taken)) if taken > 0 else node
