"""Runs Gavel in the simulator: in each round of 360 s a job runs on one GPU type or waits.

One object per run; the shares come from `gavel.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from adaptive_scheduler.candidates import gpus
from adaptive_scheduler.decision import Decision, Explanation, Requeue, Start
from adaptive_scheduler.models.prediction import t_train
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from adaptive_scheduler.tentative_snapshot import after
from reshape_papers.comparison_policies import gavel
from reshape_papers.comparison_policies.gavel import GavelRounds, Objective, TimeShareJob
from simulator.scenario import Planner, Workload

ROUND_S = 360.0  # section 7.1 of its paper


class GavelPolicy:
    """One objective on one run. GPUs of a job that ends within a round stay idle until the next one, as in Gavel."""

    def __init__(self, name: str, objective: Objective, workload: Workload) -> None:
        self._name, self._turns = name, GavelRounds(objective, ROUND_S)
        self._asked = {job.id: job.fixed_gpus for job in workload.jobs}
        self._next_s = -math.inf
        self._seen_s = 0.0
        self._picked: Mapping[str, str] = {}

    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        if now >= self._next_s:
            for job in snapshot.placed:
                self._turns.ran(job.id, snapshot.node[job.node or ""].gpu_type, now - self._seen_s)
            self._next_s, self._seen_s = now + ROUND_S, now
            self._picked = self._turns.pick(self._sharers(snapshot), _pool(snapshot))
        return self._carry_out(snapshot)

    def next_look_s(self, now: float) -> float | None:
        """Return the time of the next round."""
        return self._next_s

    def _carry_out(self, snapshot: ClusterSnapshot) -> tuple[Decision, ...]:
        """Requeue jobs that lost their turn; start jobs that have it once a node of their type has room."""
        decisions: list[Decision] = []
        for job in snapshot.placed:
            has_turn = self._picked.get(job.id) == snapshot.node[job.node or ""].gpu_type
            if job.state == "running" and not job.busy and job.stoppable and not has_turn:
                decisions.append(
                    Requeue(job.id, self._because(f"{job.id} waits: others have more of their share due."))
                )
        for job in snapshot.queue:
            if (start := self._start(snapshot, job)) is not None:
                decisions.append(start)
                snapshot = after(snapshot, start)
        return tuple(decisions)

    def _start(self, snapshot: ClusterSnapshot, job: Job) -> Start | None:
        count, kind = self._count(job), self._picked.get(job.id)
        room = [node for node in snapshot.nodes if node.gpu_type == kind and node.idle >= count]
        if not room:
            return None
        # The fullest node with room, to leave nodes for wide jobs.
        node = min(room, key=lambda node: (node.idle, node.name))
        return Start(job.id, node.name, count, self._because(f"{job.id} has its turn on {gpus(count)} of {node.name}."))

    def _sharers(self, snapshot: ClusterSnapshot) -> list[TimeShareJob]:
        largest = {node.gpu_type: 0 for node in snapshot.nodes if node.gpus}
        for node in snapshot.nodes:
            if node.gpus:
                largest[node.gpu_type] = max(largest[node.gpu_type], len(node.gpus))
        jobs = sorted((job for job in snapshot.jobs if not job.uses_cpu), key=lambda job: (job.submit_s, job.id))
        sharers = []
        for job in jobs:
            count = self._count(job)
            kinds = [kind for kind, most in largest.items() if count <= most]
            seconds = {kind: max(1e-3, t_train(snapshot.profiles, job, kind, count)) for kind in kinds}
            sharers.append(TimeShareJob(job.id, count, seconds))
        return sharers

    def _count(self, job: Job) -> int:
        return max((n for n in job.optional if n <= self._asked.get(job.id, 0)), default=min(job.optional))

    def _because(self, sentence: str) -> Explanation:
        return Explanation(self._name, sentence)


def _pool(snapshot: ClusterSnapshot) -> dict[str, int]:
    pool: dict[str, int] = {}
    for node in snapshot.nodes:
        if node.gpus and node.schedulable:
            pool[node.gpu_type] = pool.get(node.gpu_type, 0) + node.healthy
    return pool


def _factory(name: str, objective: Objective) -> Callable[[Workload], Planner]:
    return lambda workload: GavelPolicy(name, objective, workload)


OBJECTIVES: Mapping[str, Objective] = {
    "gavel-makespan": gavel.makespan,
    "gavel-max-min": gavel.max_min,
    "gavel-fifo": gavel.fifo,
}

PLANNERS: Mapping[str, Callable[[Workload], Planner]] = {n: _factory(n, how) for n, how in OBJECTIVES.items()}
