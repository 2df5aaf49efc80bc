"""The two baselines of SideCar scheduling's evaluation, as printed (`algorithms.md` 1.10).

They return decisions as `decide()` does; only the simulator calls them. The coordinator's own baselines are in
`adaptive_scheduler/policies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from adaptive_scheduler.decision import Decision, Explanation, Reshape, Start
from adaptive_scheduler.models.prediction import t_keep, t_run
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node
from adaptive_scheduler.tentative_snapshot import after
from simulator.scenario import Planner, Submission


def default(jobs: Iterable[Submission], *, passes: bool = True) -> Planner:
    """Start every job that fits on its fixed count, which the workload drew (G17).

    `passes`: whether a job may overtake one that does not fit, as the paper describes.
    """
    fixed = {job.id: job.fixed_gpus for job in jobs}
    return lambda snapshot, now: _default(snapshot, fixed, passes)


def _default(snapshot: ClusterSnapshot, fixed: Mapping[str, int], passes: bool) -> tuple[Decision, ...]:
    decisions: list[Decision] = []
    for job in snapshot.queue:
        if fits := [n for n in snapshot.nodes if n.idle >= fixed[job.id]]:
            decisions.append(_start("default", job, _most_idle(fits), fixed[job.id]))
            snapshot = after(snapshot, decisions[-1])
        elif not passes:
            break
    return tuple(decisions)


def termination(snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
    """Start newcomers on their smallest count, then grow jobs step by step with a restart each, like Optimus.

    Jobs never shrink; the first job that does not fit blocks the queue and all growth.
    """
    decisions: list[Decision] = []
    for job in snapshot.queue:
        fits = [n for n in snapshot.nodes if n.idle >= min(job.optional)]
        if not fits:
            return tuple(decisions)
        decisions.append(_start("termination", job, _most_idle(fits), min(job.optional)))
        snapshot = after(snapshot, decisions[-1])
    while grown := _best_step(snapshot):
        decisions.append(grown)
        snapshot = after(snapshot, grown)
    return tuple(decisions)


def _best_step(snapshot: ClusterSnapshot) -> Reshape | None:
    """Return the next step up (G16) that gains most seconds per GPU."""
    gains: list[tuple[float, str, int, Node]] = []
    for job in snapshot.placed:
        node = snapshot.node[job.node or ""]
        bigger = min((n for n in job.optional if n > job.num_gpus), default=None)
        free = job.state == "running" and not job.leased and job.stoppable
        if free and bigger and bigger - job.num_gpus <= node.idle:
            kept = t_keep(snapshot.profiles, job, node.gpu_type)
            gain = kept - _t_restart(snapshot.profiles, job, node.gpu_type, bigger)
            gains.append((gain / (bigger - job.num_gpus), job.id, bigger, node))
    best = max(gains, key=lambda g: g[:2], default=None)
    if best is None or best[0] <= 0:
        return None
    gain, job_id, bigger, node = best
    sentence = f"{job_id} is restarted on {bigger} GPUs of {node.name}: {gain:.1f} s gained per GPU, more than any."
    return Reshape(job_id, node.name, bigger, Explanation("termination", sentence))


def _t_restart(profiles: Profiles, job: Job, gpu_type: str, num_gpus: int) -> float:
    """Return the remaining seconds if the job is stopped, removed and launched again (1.10)."""
    o = profiles.overheads(job.type)
    return t_run(profiles, job, gpu_type, num_gpus) + o.k8s_term + o.k8s_init


def _start(algorithm: str, job: Job, node: Node, num_gpus: int) -> Start:
    sentence = f"{job.id} starts on {num_gpus} GPU{'s' * (num_gpus > 1)} of {node.name}."
    return Start(job.id, node.name, num_gpus, Explanation(algorithm, sentence))


def _most_idle(nodes: Iterable[Node]) -> Node:
    return max(nodes, key=lambda node: node.idle)
