"""Places a waiting job that trains on CPU. SpeCon moves it later; a node chosen by Volcano is final (X12).

Called by the engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from adaptive_scheduler.candidates import LISTED
from adaptive_scheduler.decision import Candidate, Explanation, Hold, Start
from adaptive_scheduler.models.allocatable import obstacle
from adaptive_scheduler.models.contention import (
    PairPrediction,
    all_known,
    completion_times,
    cpu_demands,
    incoming_demand,
)
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

CPU = "cpu"
NAMED = 3  # nodes that a sentence names before it only counts them


def schedule_incoming(snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings) -> Start | Hold:
    """Start the job on the node it is pinned to, else on the fitting node with fewest jobs trained on CPU."""
    why = {node.name: obstacle(snapshot, node.name, job) for node in snapshot.nodes}
    fits = [node for node in snapshot.nodes if not why[node.name]]
    if not fits:
        return Hold(job.id, Explanation(CPU, _waits(snapshot, job, why)))
    ranked = sorted(fits, key=lambda n: (len(snapshot.on_cpu[n.name]), n.cpu_use, n.memory_use, n.name))
    best, count = ranked[0], len(snapshot.on_cpu[ranked[0].name])
    beside = "alone" if count == 0 else f"beside {count} other{'s' if count > 1 else ''}"
    pinned = ", to which it is pinned" if job.pinned == best.name else ""
    sentence = f"{job.id} starts on {best.name}{pinned}: {beside}, the fewest of {len(fits)} with room."
    candidates = tuple(_candidate(snapshot, job, node, count) for node in ranked[:LISTED])
    return Start(job.id, best.name, 0, Explanation(CPU, sentence, candidates))


def _candidate(snapshot: ClusterSnapshot, job: Job, node: Node, fewest: int) -> Candidate:
    """Predict the outcome on that node; the first one listed is the chosen one."""
    there = snapshot.on_cpu[node.name]
    ends = completion_times(
        node.cores, {**cpu_demands(snapshot, node.name), job.id: incoming_demand(snapshot, node.name, job)}
    )
    return Candidate(
        node.name,
        0,
        *PairPrediction.from_seconds(ends),
        ends[job.id],
        job.id,
        low_confidence=not all_known([*there, job]),
    )


def _waits(snapshot: ClusterSnapshot, job: Job, why: Mapping[str, str]) -> str:
    """Return the sentence with each reason once and the nodes for which it holds."""
    if not any(node.cores > 0 for node in snapshot.nodes):
        return f"{job.id} waits: no node has cores for jobs trained on CPU; register one."
    if job.pinned is not None:
        known = why.get(job.pinned, "it is not known; register it or drop the pin")
        return f"{job.id} waits for {job.pinned}, to which it is pinned: {known}."
    nodes: dict[str, list[str]] = {}
    for node in snapshot.nodes:
        if node.cores > 0:
            nodes.setdefault(why[node.name], []).append(node.name)
    return f"{job.id} waits: no node takes it. " + " ".join(
        f"{_named(names)}: {reason}." for reason, names in nodes.items()
    )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
