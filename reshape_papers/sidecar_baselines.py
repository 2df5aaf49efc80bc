"""Implements the two baselines of SideCar scheduling's evaluation, as printed (`algorithms.md` 1.10).

They return decisions as `decide()` does; only the simulator calls them. The coordinator's own baselines are in
`adaptive_scheduler/policies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from adaptive_scheduler.decision import Decision, Explanation, Reshape, Start
from adaptive_scheduler.models.prediction import reshape_delay_s, t_train
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from adaptive_scheduler.tentative_snapshot import after
from simulator.scenario import Planner, Submission


def default(jobs: Iterable[Submission], *, passes: bool = True, smallest_first: bool = False) -> Planner:
    """Start every job that fits on its fixed count, which the workload drew (G17).

    `passes`: whether a job may overtake one that does not fit, as the paper describes. `smallest_first`: the fewest
    GPUs first, as the paper may be read: a job of 8 starts when "no job requests a smaller number of GPUs" (VI-A).
    """
    fixed = {job.id: job.fixed_gpus for job in jobs}
    return lambda snapshot, now: _default(snapshot, fixed, passes, smallest_first)


def _default(
    snapshot: ClusterSnapshot, fixed: Mapping[str, int], passes: bool, smallest_first: bool
) -> tuple[Decision, ...]:
    decisions: list[Decision] = []
    queue = sorted(snapshot.queue, key=lambda job: fixed[job.id]) if smallest_first else snapshot.queue
    for job in queue:
        if fits := [n for n in snapshot.nodes if n.idle >= fixed[job.id]]:
            decisions.append(_start("default", job, _most_idle(fits), fixed[job.id]))
            snapshot = after(snapshot, decisions[-1])
        elif not passes:
            break
    return tuple(decisions)


def termination(snapshot: ClusterSnapshot, now: float, *, sees_restarts: bool = True) -> tuple[Decision, ...]:
    """Start newcomers on their smallest count, then grow jobs step by step with a restart each, like Optimus.

    Jobs never shrink; the first job that does not fit blocks the queue and all growth. `sees_restarts`: whether a step
    has to gain more than its restart costs; the paper says so only of its own prediction.
    """
    decisions: list[Decision] = []
    for job in snapshot.queue:
        fits = [n for n in snapshot.nodes if n.idle >= min(job.optional)]
        if not fits:
            return tuple(decisions)
        decisions.append(_start("termination", job, _most_idle(fits), min(job.optional)))
        snapshot = after(snapshot, decisions[-1])
    while grown := _best_step(snapshot, sees_restarts):
        decisions.append(grown)
        snapshot = after(snapshot, grown)
    return tuple(decisions)


def _best_step(snapshot: ClusterSnapshot, sees_restarts: bool) -> Reshape | None:
    """Return the next step up (G16) that saves most seconds per GPU."""
    gains: list[tuple[float, str, int, Node]] = []
    for job in snapshot.placed:
        node = snapshot.node[job.node or ""]
        bigger = min((n for n in job.optional if n > job.num_gpus), default=None)
        free = job.state == "running" and not job.busy and job.stoppable
        if free and bigger and bigger - job.num_gpus <= node.idle:
            now_s = t_train(snapshot.profiles, job, node.gpu_type, job.num_gpus)
            gain = now_s - t_train(snapshot.profiles, job, node.gpu_type, bigger)
            if sees_restarts:
                gain -= _restart_s(snapshot.profiles, job)
            gains.append((gain / (bigger - job.num_gpus), job.id, bigger, node))
    best = max(gains, key=lambda g: g[:2], default=None)
    if best is None or best[0] <= 0:
        return None
    gain, job_id, bigger, node = best
    sentence = f"{job_id} is restarted on {bigger} GPUs of {node.name}: {gain:.1f} s gained per GPU, more than any."
    return Reshape(job_id, node.name, bigger, Explanation("termination", sentence))


def _restart_s(profiles: Profiles, job: Job) -> float:
    """Return the seconds until a job that is stopped, removed and relaunched trains where it left off (1.10)."""
    o = profiles.overheads(job.type)
    return reshape_delay_s(profiles, job) + o.k8s_term + o.k8s_init


def _start(algorithm: str, job: Job, node: Node, num_gpus: int) -> Start:
    sentence = f"{job.id} starts on {num_gpus} GPU{'s' * (num_gpus > 1)} of {node.name}."
    return Start(job.id, node.name, num_gpus, Explanation(algorithm, sentence))


def _most_idle(nodes: Iterable[Node]) -> Node:
    return max(nodes, key=lambda node: node.idle)
