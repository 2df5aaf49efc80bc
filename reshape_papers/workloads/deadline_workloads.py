"""Builds Slaml's workloads: MNIST jobs beside dummy jobs that hold 90 % of two nodes, and deadline traces.

`deadline-gang`, `-binpack` and `-task-topology` differ in how Volcano places pods; each runs with and without
deadlines, next to FIFO and EDF. The paper prints neither jobs nor figures: jobs, times and targets are invented, and
only trends may be claimed (`algorithms.md` 5.7). `deadline-traces` are ElasticFlow's jobs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.deadline_feasibility import present_task_s
from adaptive_scheduler.profiles.observations import Observation, Observations
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles
from adaptive_scheduler.settings import Deadlines, Settings
from adaptive_scheduler.snapshot import Node, Task
from reshape_papers import volcano_policy
from simulator.scenario import Costs, CpuWork, Planner, PolicySetup, Submission, Workload

ALONE = Settings(systems=())
DEADLINES = Settings(systems=("deadline",))
PRINTED = Settings(
    systems=("deadline",), deadlines=Deadlines(order_by="paper", literal_budget=True, yield_by="stop")
)  # fmt: skip

# 4.7: two nodes of 4 vCPU and 16 GB, of which dummy jobs hold 90 %
CORES, MEMORY, DUMMIES = 4.0, 16e9, 0.9
JOBS = 60
LOAD = 0.9  # of what the dummies leave free
WITH_TARGET = 0.8  # share of the jobs that have a deadline
TARGETS = (1.3, 4.0)  # multiple of its tasks' median time
NOISE = 0.35  # sigma of log execution time around its median
CONTENTION = 0.04  # share of speed lost per further job on a node
HISTORY = 40  # past tasks per amount

TASKS = (("preprocess", 1, (0.05, 0.1)), ("extract", 3, (0.02, 0.04)), ("train", 3, (0.03, 0.06, 0.1)))
"""Name, replicas, and the cores that a replica may ask for (Listing 1 asks for 2m and 3m)."""
SECONDS_PER_CORE = {"preprocess": 400.0, "extract": 1500.0, "train": 3000.0}
"""Median execution time of a task, by the cores that a replica asks for: larger requests train longer."""


def mnist(seed: int, data: Path | None = None, placement: str = "gang") -> Workload:
    """Return MNIST jobs of three consecutive tasks, on the parts of two nodes that dummy jobs leave free."""
    rng = random.Random(seed)
    history = Observations.from_rows(_history(rng))
    jobs = tuple(_jobs(rng))
    score = volcano_policy.PLACEMENTS[placement]
    plans: dict[str, tuple[Planner, Settings, str]] = {
        placement: (volcano_policy.alone(score), ALONE, "Volcano alone: by submission, what fits passes what does not"),
        "fifo": (volcano_policy.alone(score, passes=False), ALONE, "by submission, no job passes one that waits"),
        "edf": (
            volcano_policy.alone(score, volcano_policy.by_deadline),
            ALONE,
            "by deadline, what fits passes what does not",
        ),
        f"{placement}+printed": (volcano_policy.with_deadlines(score, PRINTED), PRINTED, "D5, D9, X9 as in the paper"),
        f"{placement}+deadlines": (volcano_policy.with_deadlines(score, DEADLINES), DEADLINES, "Volcano places (X12)"),
        "deadline": (partial(decide, settings=DEADLINES), DEADLINES, "decide(), which places too"),
    }
    left = 1.0 - DUMMIES
    return Workload(
        f"deadline-{placement}", seed, jobs,
        tuple(Node(name, "", cores=CORES * left, memory=MEMORY * left) for name in ("worker-1", "worker-2")),
        tuple(
            PolicySetup(
                name, plan, Costs.in_place(DEFAULT_OVERHEADS), Profiles(), settings, says=says,
                expected=lambda snapshot, job: present_task_s(snapshot, job, DEADLINES),
            )
            for name, (plan, settings, says) in plans.items()
        ),
        observations=history, contention=CONTENTION,
        emulated=(
            "all nodes, pods and jobs: nothing ran on a real Volcano",
            f"dummy jobs: {DUMMIES:.0%} of the cores and memory of two nodes of 4 vCPU and 16 GB are not there",
        ),
        invented=(
            f"{JOBS} jobs, their tasks, times and history; arrivals: sorted uniforms at {LOAD:.0%} of what is left",
            f"targets: {TARGETS[0]} to {TARGETS[1]} times the median time, {WITH_TARGET:.0%} of the jobs have one",
            f"each further job on a node costs all there {CONTENTION:.0%} of their speed",
            "all pods of a task are on one node",
        ),
    )  # fmt: skip


def _seconds(rng: random.Random, name: str, cores: float) -> float:
    return SECONDS_PER_CORE[name] * cores * rng.lognormvariate(0.0, NOISE)


def _history(rng: random.Random) -> list[Observation]:
    return [
        Observation(cores, _memory(cores), 0, _seconds(rng, name, cores))
        for name, _, choices in TASKS
        for cores in choices
        for _ in range(HISTORY)
    ]


def _memory(cores: float) -> float:
    return cores * 1e9  # never scarce where cores are not


def _jobs(rng: random.Random) -> list[Submission]:
    drawn = [[(name, replicas, rng.choice(choices)) for name, replicas, choices in TASKS] for _ in range(JOBS)]
    times = [[_seconds(rng, name, cores) for name, _, cores in tasks] for tasks in drawn]
    works = [
        [seconds * cores * replicas for seconds, (_, replicas, cores) in zip(t, tasks, strict=True)]
        for t, tasks in zip(times, drawn, strict=True)
    ]
    window_s = math.fsum(map(math.fsum, works)) / (2 * CORES * (1 - DUMMIES) * LOAD)
    arrivals = sorted(rng.uniform(0.0, window_s) for _ in range(JOBS))
    return [
        _job(rng, f"mnist-{i:02d}", at, tasks, work)
        for i, (at, tasks, work) in enumerate(zip(arrivals, drawn, works, strict=True))
    ]


def _job(
    rng: random.Random, name: str, arrival_s: float, tasks: list[tuple[str, int, float]], work: list[float]
) -> Submission:
    median = math.fsum(SECONDS_PER_CORE[task] * cores for task, _, cores in tasks)
    target = rng.uniform(*TARGETS) * median
    return Submission(
        id=name, type="mnist", arrival_s=arrival_s, optional=(0,), iterations=math.fsum(work), fixed_gpus=0,
        cpu=CpuWork(math.fsum(work), kind="MNIST"),
        tasks=tuple(Task(task, cores, _memory(cores), 0, replicas) for task, replicas, cores in tasks),
        task_iterations=tuple(work),
        sla_s=target if rng.random() < WITH_TARGET else None,
    )  # fmt: skip


NAMES: Mapping[str, Callable[[int, Path | None], Workload]] = {
    f"deadline-{placement}": partial(mnist, placement=placement) for placement in volcano_policy.PLACEMENTS
}
