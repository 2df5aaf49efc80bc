"""Seed 004's judgement: Algorithm 1 (incoming job, reshape down) and Algorithm 2 (reshape up, sequence D).

As resolved in `algorithms.md` 1.6 and 1.7, with the ids of 1.8. `elastic_ways`, `elastic_waiting` and
`elastic_growth` find every way and what it leads to, here the best is taken, `elastic_words` says why. Called by the
engine. Pure.
"""

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
"""So many jobs that ask for the same are each searched for until the table changes; in a long queue the others wait
like the last of them. Whether a job can start does not depend on how long it is."""


def schedule_incoming(
    snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings, table: CostTable | None = None
) -> Start | Hold:
    """Algorithm 1: the first GPUs of a waiting job, idle ones or with those of one running job.

    `table`: of this snapshot or of what it has come of, which saves working it out again. A type without a
    known speed starts on as few GPUs as can be had, to be measured.
    """
    table = table.then(snapshot) if table else CostTable(snapshot, now, settings)
    if why := infeasibility(snapshot, job, combined_capacity(snapshot, job, settings)):
        return Hold(job.id, explain(INCOMING, why, [], None, table.times, snapshot.profiles))
    alike = table.refused.setdefault(_what_a_refusal_rests_on(job), [])
    if len(alike) >= ALIKE:
        return Hold(job.id, explain(INCOMING, like_sentence(job, alike[-1]), [], None, table.times, snapshot.profiles))
    ways, more = incoming_candidates(table, job)
    best = ways[0] if ways else None
    if best is None or best.rank == REFUSED:
        alike.append(job.id)

    # Whoever would break a deadline waits, unless it has one itself (5.4).
    if best is None or best.rank == REFUSED or (best.rank == LATE and job.sla_s is None):
        sentence, ways = hold_sentence(table, job, best), [*rigid_candidates(table, job), *ways]
        return Hold(job.id, explain(INCOMING, sentence, ways, None, table.times, snapshot.profiles, more))
    later = _better_later(table, job, best)
    if later is not None:
        sentence = wait_sentence(later, best)
        return Hold(job.id, explain(INCOMING, sentence, [later, *ways], later, table.times, snapshot.profiles, more))
    return Start(
        job=job.id,
        node=best.node.name,
        num_gpus=best.num_gpus,
        explanation=explain(INCOMING, start_sentence(best), ways, best, table.times, snapshot.profiles, more),
        victim=best.victim.id if best.victim else None,
        victim_num_gpus=best.keeps if best.victim else None,
        workers=best.workers,
    )


def schedule_running(
    snapshot: ClusterSnapshot, now: float, settings: Settings, table: CostTable | None = None
) -> Reshape | Move | None:
    """Algorithm 2: the one running job that gets idle GPUs, of its own nodes, of further ones or by a move.

    None if nobody gains enough. `table` as in Algorithm 1.
    """
    if not any(node.idle for node in snapshot.nodes):
        return None
    table = table.then(snapshot) if table else CostTable(snapshot, now, settings)
    ways, more = growth_candidates(table)
    if not ways:
        return None
    best = ways[0]
    sentence = growth_sentence(best, table.times)
    explanation = explain(RUNNING, sentence, ways, best, table.times, snapshot.profiles, more)
    if not best.workers and best.node.name not in {w.node for w in placed_on(best.job)}:
        return Move(best.job.id, best.node.name, best.num_gpus, explanation)
    return Reshape(best.job.id, best.node.name, best.num_gpus, explanation, best.workers)


def _better_later(table: CostTable, job: Job, best: RankedCandidate) -> RankedCandidate | None:
    """To wait for the next job that ends, where that is better than to start at once; else None.

    It is where it leads to less (G19), or brings the end of all work nearer by more than it delays the job.
    """
    settings = table.settings
    end_s = _end_of_all_s(table, best) if settings.spare_critical and best.victim is not None else 0.0
    spares = end_s > max(table.times.max, table.all_work_s)
    if best.rank != GOOD or not (spares or settings.compare_with_waiting):
        return None
    later = waiting_candidate(table, job)
    if later is None or (settings.compare_with_waiting and _times(later) < _times(best)):
        return later
    return later if spares and end_s - later.makespan_s > max(0.0, later.job_s - best.job_s) else None


def _end_of_all_s(table: CostTable, way: RankedCandidate) -> float:
    """The makespan if the victim gets its GPUs back once the newcomer has ended."""
    assert way.victim is not None
    if way.makespan_s <= way.job_s:
        return way.makespan_s
    return way.job_s + (1.0 - way.job_s / way.makespan_s) * table.times.seconds[way.victim.id]


def _what_a_refusal_rests_on(job: Job) -> object:
    return job.type, job.optional, job.gpu_type, job.pinned, job.max_workers, job.gpus_per_pod


def _times(way: RankedCandidate) -> tuple[float, float]:
    return way.makespan_s, way.sum_s
