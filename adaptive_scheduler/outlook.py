"""The snapshot as it will be once decisions are accepted: what the next one is decided on.

Called by the engine, by the simulator's baselines and by policies that try a second step. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from adaptive_scheduler.decision import (
    Decision,
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
    """GPUs promised, the jobs under an operation. GPUs that a job is still to let go are not idle yet."""
    for decision in decisions:
        if not isinstance(decision, Hold):
            snapshot = _after_one(snapshot, decision)
    return snapshot


def _after_one(snapshot: ClusterSnapshot, decision: Decision) -> ClusterSnapshot:
    job = snapshot.job[decision.job]
    changed = {job.id: _changed(job, decision)}
    nodes = snapshot.nodes
    if isinstance(decision, Start) and decision.victim is not None and decision.victim_num_gpus is not None:
        victim = snapshot.job[decision.victim]
        keeps = decision.victim_num_gpus
        workers = gives_on(victim, decision.node, victim.num_gpus - keeps)
        changed[victim.id] = replace(victim, num_gpus=keeps, workers=workers, leased=True)
    if isinstance(decision, Start | Reshape | Move):
        has = {w.node: w.num_gpus for w in placed_on(job)} if isinstance(decision, Reshape) else {}
        taken = {w.node: w.num_gpus - has.get(w.node, 0) for w in workers_of(decision)}
        nodes = tuple(_fuller(node, taken.get(node.name, 0)) for node in nodes)
    return replace(snapshot, nodes=nodes, jobs=tuple(changed.get(j.id, j) for j in snapshot.jobs))


def _changed(job: Job, decision: Decision) -> Job:
    match decision:
        case Start():
            job = replace(job, state="initializing")
        case Stay():
            spent = decision.at_s if decision.spends_move else job.migrated_s
            return replace(job, migrated_s=spent, move_refused_s=decision.at_s)
        case Limit():
            return replace(job, cpu_limit=decision.cores, limit_until_s=None)  # just set: nowhere near its end
        case Requeue() | Finish():
            return replace(job, node=None, num_gpus=0, workers=(), leased=True)
    assert isinstance(decision, Start | Reshape | Move)
    workers = () if isinstance(decision, Move) else decision.workers
    return replace(job, node=decision.node, num_gpus=decision.num_gpus, workers=workers, leased=True)


def _fuller(node: Node, taken: int) -> Node:
    return idle_after(node, min(node.idle, taken)) if taken > 0 else node
