"""Implements Algorithm 1 (incoming job, reshape down) and Algorithm 2 (reshape up, sequence D) of SideCar scheduling.

As resolved in `algorithms.md` 1.6 and 1.7, with the ids of 1.8. `shrink`, `wait` and `expand` find candidates with
their predictions, this module takes the best, `explain` phrases the reason. Called by the engine. Pure."""

from __future__ import annotations

from adaptive_scheduler.candidates import GOOD, LATE, REFUSED, RankedCandidate, explain, infeasibility
from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import Hold, Move, Reshape, Start, placed_on
from adaptive_scheduler.policies.elastic.expand import growth_candidates
from adaptive_scheduler.policies.elastic.explain import (
    growth_sentence,
    hold_sentence,
    like_sentence,
    start_sentence,
    wait_sentence,
)
from adaptive_scheduler.policies.elastic.shrink import combined_capacity, incoming_candidates
from adaptive_scheduler.policies.elastic.wait import rigid_candidates, waiting_candidate
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

INCOMING = "elastic.incoming"
RUNNING = "elastic.running"

ALIKE = 10
"""Searches for equal requests that fail before further ones wait without a search, until the table changes. Whether a
job can start does not depend on its length. Owners see tables of their own, so each has one search at least."""


def schedule_incoming(
    snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings, table: CostTable | None = None
) -> Start | Hold:
    """Algorithm 1: give a waiting job its first GPUs, idle ones or with those of one victim. `table`: of this snapshot
    or an earlier one, to avoid recomputation. A type of unknown speed starts on as few GPUs as possible, to be
    measured."""
    table = table.then(snapshot) if table else CostTable(snapshot, now, settings)
    if why := infeasibility(snapshot, job, combined_capacity(snapshot, job, settings)):
        return Hold(job.id, explain(INCOMING, why, [], None, table.times, snapshot.profiles))
    request = _what_a_refusal_rests_on(job)
    alike = table.refused.setdefault(request, [])
    if alike and table.failed_searches[request] >= ALIKE:
        return Hold(job.id, explain(INCOMING, like_sentence(job, alike[-1]), [], None, table.times, snapshot.profiles))
    candidates, more = incoming_candidates(table, job)
    best = candidates[0] if candidates else None
    if best is None or best.rank == REFUSED:
        alike.append(job.id)
        table.failed_searches[request] += 1

    # A job that would break a deadline waits, unless it has one itself (5.4).
    if best is None or best.rank == REFUSED or (best.rank == LATE and job.sla_s is None):
        sentence, candidates = hold_sentence(table, job, best), [*rigid_candidates(table, job), *candidates]
        return Hold(job.id, explain(INCOMING, sentence, candidates, None, table.times, snapshot.profiles, more))
    later = _better_later(table, job, best)
    if later is not None:
        sentence, candidates = wait_sentence(later, best), [later, *candidates]
        return Hold(job.id, explain(INCOMING, sentence, candidates, later, table.times, snapshot.profiles, more))
    sentence = start_sentence(best, snapshot.profiles)
    return Start(
        job=job.id,
        node=best.node.name,
        num_gpus=best.num_gpus,
        explanation=explain(INCOMING, sentence, candidates, best, table.times, snapshot.profiles, more),
        victim=best.victim.id if best.victim else None,
        victim_num_gpus=best.keeps if best.victim else None,
        workers=best.workers,
    )


def schedule_running(
    snapshot: ClusterSnapshot, now: float, settings: Settings, table: CostTable | None = None
) -> Reshape | Move | None:
    """Algorithm 2: give idle GPUs to one running job, of its own nodes, of further ones or by a move. None if no job
    gains enough. `table` as in Algorithm 1."""
    if not snapshot.has_idle:
        return None
    table = table.then(snapshot) if table else CostTable(snapshot, now, settings)
    candidates, more = growth_candidates(table)
    if not candidates:
        return None
    best = candidates[0]
    sentence = growth_sentence(best, table.times, snapshot.profiles)
    explanation = explain(RUNNING, sentence, candidates, best, table.times, snapshot.profiles, more)
    if not best.workers and best.node.name not in {w.node for w in placed_on(best.job)}:
        return Move(best.job.id, best.node.name, best.num_gpus, explanation)
    return Reshape(best.job.id, best.node.name, best.num_gpus, explanation, best.workers)


def _better_later(table: CostTable, job: Job, best: RankedCandidate) -> RankedCandidate | None:
    """Return waiting for the next job that ends, if that is better than an immediate start; else None. It is better if
    its outcome is (G19), or if it shortens the end of all work by more than it delays the job."""
    settings = table.settings
    end_s = _end_of_all_s(table, best) if settings.spare_critical and best.victim is not None else 0.0
    spares = end_s > max(table.times.max, table.all_work_s)
    if best.rank != GOOD or not (spares or settings.compare_with_waiting):
        return None
    later = waiting_candidate(table, job)
    if later is None or (settings.compare_with_waiting and _times(later) < _times(best)):
        return later
    return later if spares and end_s - later.makespan_s > max(0.0, later.job_s - best.job_s) else None


def _end_of_all_s(table: CostTable, candidate: RankedCandidate) -> float:
    """Return the makespan if the victim gets its GPUs back once the newcomer has ended."""
    assert candidate.victim is not None
    if candidate.makespan_s <= candidate.job_s:
        return candidate.makespan_s
    return candidate.job_s + (1.0 - candidate.job_s / candidate.makespan_s) * table.times.seconds[candidate.victim.id]


def _what_a_refusal_rests_on(job: Job) -> object:
    return job.type, job.optional, job.gpu_type, job.pinned, job.max_workers, job.gpus_per_pod


def _times(candidate: RankedCandidate) -> tuple[float, float]:
    return candidate.makespan_s, candidate.sum_s
