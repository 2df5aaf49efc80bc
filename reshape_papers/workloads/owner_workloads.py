"""Builds workloads of several users: a stream that starves another user, a lab with one sweep, and three teams.

Each is simulated with rights among the users and without: then all jobs are of one owner, and the order of the queue
decides alone. Read by `benchmarks/sharing.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles
from adaptive_scheduler.shares import QueueShare, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Node
from reshape_papers.traces import replay
from reshape_papers.traces.trace import speed_up
from reshape_papers.workloads.sidecar_workloads import workload_s
from simulator.scenario import Costs, PolicySetup, Submission, Workload

STREAM_EVERY_S = 900.0
STREAM_JOBS = 5
STREAM_JOB_S = 900.0
OTHER_JOB_S = 1200.0
LAB_GPUS = 8
LAB_SWEEP = 60
LAB_USERS = 5
LAB_JOBS_EACH = 3
TEAM_WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0}
SUBMITTED = {"a/a1": 0.40, "a/a2": 0.10, "b/b1": 0.20, "b/b2": 0.05, "c/c1": 0.15, "c/c2": 0.10}
"""Share of all jobs by queue and user: load is uneven, and not as the weights are."""
PHILLY_JOBS = 100
PHILLY_READ = 6000
PHILLY_LONGEST_S = 3 * 3600.0
PHILLY_SHORTEST_S = 60.0
PHILLY_LOAD = 4.0
"""Work that arrives against what all GPUs can do meanwhile."""
GAVEL_TRACE = "gavel:gavel/traces/max_min_fairness.csv"
V100_ALONE = (("v", "V100", 2),)
MIXED_TYPES = (("v", "V100", 1), ("p", "P100", 1), ("k", "K80", 2))
PER_NODE = 8

Decide = Callable[[ClusterSnapshot, float], tuple[Decision, ...]]


class LooksAgain:
    """Decides also once a minute while a job waits, as a coordinator does: some rights need a wait."""

    EVERY_S = 60.0

    def __init__(self, plan: Decide) -> None:
        self.plan = plan
        self._waits = False

    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]:
        self._waits = bool(snapshot.queue)
        return self.plan(snapshot, now)

    def next_look_s(self, now: float) -> float | None:
        return (now // self.EVERY_S + 1) * self.EVERY_S if self._waits else None


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
    return Workload("starvation", seed, ordered, (_node_name(4),), (setup,), invented=("all jobs",))


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
    return replace(given, name="lab", jobs=ordered, nodes=(_node_name(LAB_GPUS),), policy_setups=(setup,))


def three_teams(workload: Workload, seed: int) -> Workload:
    """Return the workload with its jobs drawn among three teams of two users each, of which one weighs double."""
    rng = random.Random(seed)
    names = [name.split("/") for name in SUBMITTED]
    drawn = rng.choices(names, weights=list(SUBMITTED.values()), k=len(workload.jobs))
    jobs = (replace(job, queue=queue, owner=user) for job, (queue, user) in zip(workload.jobs, drawn, strict=True))
    shares = Shares({name: QueueShare(weight=weight) for name, weight in TEAM_WEIGHTS.items()})
    setup = next(one for one in workload.policy_setups if one.name == "sidecar")
    setup = replace(setup, plan=LooksAgain(decide))
    return replace(workload, jobs=tuple(jobs), shares=shares, policy_setups=(setup,))


def crowded_philly(data: Path, seed: int) -> Workload:
    """Return 100 jobs of the Philly trace, of at most three hours, that arrive four times as fast as 16 V100 work."""
    given = replay("philly", data, PHILLY_READ, tuple(_node_name(4, f"n{i}", "V100") for i in range(4)))
    rng = random.Random(seed)
    lasted = {job.id: job.iterations / speed_up(job.fixed_gpus) for job in given.jobs}
    fitting = [job for job in given.jobs if PHILLY_SHORTEST_S <= lasted[job.id] <= PHILLY_LONGEST_S]
    chosen = sorted(rng.sample(fitting, PHILLY_JOBS), key=lambda job: (job.arrival_s, job.id))
    gpus = sum(len(node.gpus) for node in given.nodes)
    within_s = sum(job.iterations for job in chosen) / (gpus * PHILLY_LOAD)
    arrivals = sorted(rng.uniform(0.0, within_s) for _ in chosen)
    jobs = (replace(job, arrival_s=at_s) for job, at_s in zip(chosen, arrivals, strict=True))
    return replace(given, name="philly", jobs=tuple(jobs), seed=seed)


def gavel_on(data: Path, kinds: Sequence[tuple[str, str, int]]) -> Workload:
    """Return the Gavel trace on nodes of eight GPUs. `kinds`: prefix of names, GPU type and number of nodes of each."""
    nodes = tuple(_node_name(PER_NODE, f"{name}{i}", gpu_type) for name, gpu_type, count in kinds for i in range(count))
    return replay(GAVEL_TRACE, data, None, nodes)


def _node_name(count: int, name: str = "node", gpu_type: str = "GPU") -> Node:
    return Node(name, gpu_type, tuple(Gpu(f"{name}{i}") for i in range(count)))
