"""Finds the alternatives of a start in Algorithm 1: waiting for the next end (G19), and victims that must not be
stopped. Called by `algorithms.py`. Pure."""

from __future__ import annotations

from adaptive_scheduler.candidates import GOOD, LISTED, REFUSED, RankedCandidate, nodes_for, reshape_obstacle
from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import placed_on
from adaptive_scheduler.index import removable_counts
from adaptive_scheduler.models.prediction import t_new
from adaptive_scheduler.snapshot import Job, Node, is_placed


def rigid_candidates(table: CostTable, job: Job) -> list[RankedCandidate]:
    """Return running jobs that have enough GPUs but must not be stopped, to explain a wait to people."""
    nodes = {n.name: n for n in nodes_for(table.snapshot, job) if n.open}
    count = min(job.optional)
    could = (
        (other, nodes[other.node or ""])
        for other in table.snapshot.where(_keeps_gpus)
        if other.node in nodes and removable_counts(other, table.settings)
    )
    missing = sorted(((o, n) for o, n in could if count > n.idle), key=lambda pair: (pair[1].name, pair[0].id))
    candidates = []
    for place, (other, node) in enumerate(missing[:LISTED]):
        job_s = t_new(table.snapshot.profiles, job, node.gpu_type, count)
        candidates.append(
            RankedCandidate(
                (REFUSED, 0.0, -LISTED + place),
                job,
                node,
                count,
                *table.scope.replace(job.id, job_s),
                job_s,
                other,
                other.num_gpus,
                f"job {other.id} {reshape_obstacle(other, table.now)}",
                possible=False,
            )
        )
    return candidates


def _keeps_gpus(job: Job) -> bool:
    return is_placed(job) and not job.stoppable and job.state == "running"


def waiting_candidate(table: CostTable, job: Job) -> RankedCandidate | None:
    """G19: wait for the placed job that is predicted to end first, and start on its GPUs and idle ones there. None if
    no job ends on a node open to the newcomer, or its GPUs do not suffice."""
    nodes = {n.name: n for n in nodes_for(table.snapshot, job) if n.open}
    there = [j for j in table.snapshot.placed if j.node in nodes]
    if not there:
        return None
    first = min(there, key=lambda j: (table.times.seconds[j.id], j.id))
    node = nodes[first.node or ""]
    free = node.idle + sum(w.num_gpus for w in placed_on(first) if w.node == node.name)
    known = table.snapshot.profiles.speeds.get((job.type, node.gpu_type))
    wait_s = table.times.seconds[first.id]
    candidates = [_later(table, job, node, n, wait_s) for n in job.optional if n <= free and known]
    full = table.settings.tiebreak == "full"
    return min(candidates, key=lambda w: (w.makespan_s, w.sum_s, w.num_gpus) if full else (w.makespan_s,), default=None)


def _later(table: CostTable, job: Job, node: Node, count: int, wait_s: float) -> RankedCandidate:
    job_s = wait_s + t_new(table.snapshot.profiles, job, node.gpu_type, count)
    makespan, total = table.scope.replace(job.id, job_s)
    return RankedCandidate((GOOD, 0.0, 0), job, node, count, makespan, total, job_s)
