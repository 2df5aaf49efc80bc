"""Builds workloads of several users of one machine: a stream that starves another user, and a lab with one sweep.

Each policy is simulated with rights among the users and without: then all jobs are of one owner, and shortest first
decides alone. Read by `benchmarks/sharing.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Node
from experiments.workloads.sidecar_workloads import workload_s
from simulator.scenario import Costs, PolicySetup, Submission, Workload

STREAM_EVERY_S = 900.0
STREAM_JOBS = 5
STREAM_JOB_S = 900.0
OTHER_JOB_S = 1200.0
LAB_GPUS = 8
LAB_SWEEP = 60
LAB_USERS = 5
LAB_JOBS_EACH = 3

Decide = Callable[[ClusterSnapshot, float], tuple[Decision, ...]]


class LooksAgain:
    """Decides also once a minute while a job waits, as a coordinator does: some rights need a wait."""

    EVERY_S = 60.0

    def __init__(self, plan: Decide) -> None:
        self._plan = plan
        self._waits = False

    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        self._waits = bool(snapshot.queue)
        return self._plan(snapshot, now)

    def next_look_s(self, now: float) -> float | None:
        return (now // self.EVERY_S + 1) * self.EVERY_S if self._waits else None


def without_owners(workload: Workload) -> Workload:
    """Return the workload as if all jobs were of one user."""
    return replace(workload, jobs=tuple(replace(job, owner="", queue="") for job in workload.jobs))


def starvation(seed: int = 0, hours: float = 26.0) -> Workload:
    """Return four GPUs, a user who submits five jobs of 15 minutes every 15 minutes, and one with one of 20 minutes.

    No job can use a second GPU. `seed` changes nothing.
    """
    jobs = [
        Submission(f"a{batch}-{i}", "t", batch * STREAM_EVERY_S + i, (1,), STREAM_JOB_S, 1, owner="ada")
        for batch in range(int(hours * 3600 / STREAM_EVERY_S))
        for i in range(STREAM_JOBS)
    ]
    jobs.append(Submission("b", "t", 1000.0, (1,), OTHER_JOB_S, 1, owner="bob"))
    rows = [{"job_type": "t", "gpu_type": "GPU", "num_gpus": 1, "seconds_per_iteration": 1.0, "origin": "given"}]
    setup = PolicySetup("sidecar", LooksAgain(decide), Costs.in_place(DEFAULT_OVERHEADS), Profiles.from_rows(rows))
    ordered = tuple(sorted(jobs, key=lambda job: (job.arrival_s, job.id)))
    return Workload("starvation", seed, ordered, (_node(4),), (setup,), invented=("all jobs",))


def lab(seed: int) -> Workload:
    """Return eight GPUs, a sweep of 60 jobs of workload S that one user submits at once, and five users with three
    jobs each within some hours."""
    given = workload_s(seed, count=LAB_SWEEP + LAB_USERS * LAB_JOBS_EACH)
    rng = random.Random(seed)
    jobs = [
        replace(job, arrival_s=float(place), owner="sweep")
        if place < LAB_SWEEP
        else replace(job, arrival_s=rng.uniform(600, 20_000), owner=f"user{place % LAB_USERS}")
        for place, job in enumerate(given.jobs)
    ]
    setup = next(one for one in given.policy_setups if one.name == "sidecar")
    setup = replace(setup, plan=LooksAgain(setup.plan))
    ordered = tuple(sorted(jobs, key=lambda job: (job.arrival_s, job.id)))
    return replace(given, name="lab", jobs=ordered, nodes=(_node(LAB_GPUS),), policy_setups=(setup,))


def _node(count: int) -> Node:
    return Node("node", "GPU", tuple(Gpu(f"node{i}") for i in range(count)))
