"""Seed 004's judgement: Algorithm 1 (incoming job, reshape down) and Algorithm 2 (reshape up, sequence D).

As resolved in `algorithms.md` 1.6 and 1.7, with the ids of 1.8. `elastic_ways` and `elastic_growth` find
every way and what it leads to, here the best is taken, `elastic_words` says why. Called by the engine. Pure.
"""

from __future__ import annotations

from adaptive_scheduler.decision import Hold, Move, Reshape, Start, placed_on
from adaptive_scheduler.policies.elastic_growth import running_ways
from adaptive_scheduler.policies.elastic_ways import Search, held_together, incoming_ways, waiting_way
from adaptive_scheduler.policies.elastic_words import growth_sentence, hold_sentence, start_sentence, wait_sentence
from adaptive_scheduler.prediction import RemainingTimes
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from adaptive_scheduler.ways import GOOD, LATE, REFUSED, Way, explain, impossible

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
    if why := impossible(snapshot, job, held_together(snapshot, job, settings)):
        return Hold(job.id, explain(INCOMING, why, [], None, times, snapshot.profiles))
    search = Search.of(snapshot, now, settings, times)
    ways = list(incoming_ways(search, job))
    best = min(ways, key=lambda way: way.key, default=None)

    # Whoever would break a deadline waits, unless it has one itself (5.4).
    if best is None or best.rank == REFUSED or (best.rank == LATE and job.sla_s is None):
        sentence = hold_sentence(search, job, best)
        return Hold(job.id, explain(INCOMING, sentence, ways, None, times, snapshot.profiles))
    later = waiting_way(search, job) if settings.compare_with_waiting else None
    if later is not None and best.rank == GOOD and _times(later) < _times(best):
        sentence = wait_sentence(later, best)
        return Hold(job.id, explain(INCOMING, sentence, [later, *ways], later, times, snapshot.profiles))
    return Start(
        job=job.id,
        node=best.node.name,
        num_gpus=best.num_gpus,
        explanation=explain(INCOMING, start_sentence(search, best), ways, best, times, snapshot.profiles),
        victim=best.victim.id if best.victim else None,
        victim_num_gpus=best.keeps if best.victim else None,
        workers=best.workers,
    )


def schedule_running(snapshot: ClusterSnapshot, now: float, settings: Settings) -> Reshape | Move | None:
    """Algorithm 2: the one running job that gets idle GPUs, of its own nodes, of further ones or by a move.

    None if nobody gains enough.
    """
    if not any(node.idle for node in snapshot.nodes):
        return None
    search = Search.of(snapshot, now, settings, RemainingTimes.of(snapshot))
    ways = list(running_ways(search))
    best = min(ways, key=lambda way: way.key, default=None)
    if best is None or best.rank == REFUSED:
        return None
    sentence = growth_sentence(best, search.times)
    explanation = explain(RUNNING, sentence, ways, best, search.times, snapshot.profiles)
    if not best.workers and best.node.name not in {w.node for w in placed_on(best.job)}:
        return Move(best.job.id, best.node.name, best.num_gpus, explanation)
    return Reshape(best.job.id, best.node.name, best.num_gpus, explanation, best.workers)


def _times(way: Way) -> tuple[float, float]:
    return way.makespan_s, way.sum_s
