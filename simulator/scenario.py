"""Defines the input of a simulation as frozen values: jobs, nodes, policies and the cost of every change.

Built by `reshape_papers/workloads`, read by the simulator and the reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol, runtime_checkable

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.profiles.observations import Observations
from adaptive_scheduler.profiles.profiles import Overheads, Profiles
from adaptive_scheduler.reservation import Reservation
from adaptive_scheduler.settings import DEFAULTS, Settings
from adaptive_scheduler.shares import JobOwner, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Task
from simulator.accuracy_targets import AccuracyTarget


class NoWorkload(Exception):
    """Raised when the workload cannot be built; the text says what to do."""


Planner = Callable[[ClusterSnapshot, float], tuple[Decision, ...]]
"""A policy: `decide()`, or a baseline with the same signature."""


@runtime_checkable
class TimedPlanner(Protocol):
    """A planner that is also called at its own times: one that decides in rounds, or replays a log."""

    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]: ...

    def next_look_s(self, now: float) -> float | None:
        """Return the time of the next call, after `now`; None for no call. Read after each decision."""
        ...


Curve = Callable[[float], float]
"""Evaluation value (a loss, of any scale) as a function of the share of the work that is done, 0..1 (5.6)."""


@dataclass(frozen=True, slots=True)
class CpuWork:
    """Demand of a job trained on CPU: `core_s` core-seconds, on at most `demand` cores at a time."""

    core_s: float
    demand: float = 1.0
    curve: Curve | None = None
    kind: str = ""  # the model, for the report


@dataclass(frozen=True, slots=True)
class Submission:
    """One job as its user submits it."""

    id: str
    type: str
    arrival_s: float
    optional: tuple[int, ...]
    iterations: float
    fixed_gpus: int  # what the default baseline runs it on (G17)
    believed_iterations: float | None = None  # the length that the scheduler assumes; None: the true one
    cpu: CpuWork | None = None  # trained on CPU: then `optional` is (0,), and `iterations` are proportional to the work
    node: str | None = None  # placed there by Volcano (X12); None: the scheduler chooses
    tasks: tuple[Task, ...] = ()  # one after another (Slaml); each goes through the queue
    task_iterations: tuple[float, ...] = ()  # of each task; together `iterations`. Empty: they are equally long
    estimate_s: float | None = None  # the user's estimate of its duration
    sla_s: float | None = None  # deadline, from submission
    max_workers: int = 1
    owner: str = ""  # user whose job it is
    queue: str = ""
    priority: int = 0
    fails_at: tuple[float, ...] = ()  # shares of its work, 0..1, at each of which its process crashes once
    accuracy_target: AccuracyTarget | None = None  # of a job that trains until one
    like: Job | None = (
        None  # as a live scheduler knows it: fields that no simulation changes stay; `iterations` are those left
    )
    gpus: tuple[str, ...] = ()  # ids of those that it has from the beginning
    ready_s: float = 0.0  # with them: until it trains
    pace: float = 1.0  # its real seconds per iteration, relative to its profile, which is all that policies know

    @property
    def task_ends(self) -> tuple[float, ...]:
        """Return the iterations at which each task ends; a job without tasks counts as one task."""
        count = max(1, len(self.tasks))
        lengths = self.task_iterations or (self.iterations / count,) * count
        return (*list(accumulate(lengths))[:-1], self.iterations)

    def demand(self, task: int) -> float:
        """Return the cores that a task on CPU can use: its request, else that of the job."""
        asked = self.tasks[task].cores * self.tasks[task].replicas if self.tasks else 0.0
        return asked or (self.cpu.demand if self.cpu is not None else math.inf)

    def left(self, done: float) -> float:
        """Return the remaining iterations that the scheduler predicts."""
        if self.accuracy_target is not None:
            return self.accuracy_target.left(done)
        if self.believed_iterations is None:
            return max(0.0, self.iterations - done)
        return max(1.0, self.believed_iterations - done)


@dataclass(frozen=True, slots=True)
class Costs:
    """True cost of each step of a change in seconds, in the order of the steps.

    Mechanisms differ only in these numbers: with a sidecar a newcomer launches before it has GPUs (early
    initialization) and a reshaped job keeps its pod; a relaunched pod does every step with GPUs reserved.
    """

    launch: float  # a newcomer, before it needs its GPUs
    begin: float  # a newcomer, from having its GPUs to its first iteration
    stop: float  # a reshaped job, from its last iteration to releasing its GPUs
    shrunk: float  # from there to its first iteration on fewer GPUs
    grown: float  # on more GPUs
    end: float  # a finished job, from its last iteration to releasing its GPUs
    leave: float = 0.0  # a job that leaves its node, after `stop`, until its GPUs are free (sequence D)
    checkpoint_every_s: float = 600.0  # of training between two checkpoints, which take no time
    cpu_launch: float = 0.0  # a job trained on CPU, before it uses any core
    cpu_save: float = 2.0  # when leaving its node: checkpoint and end
    cpu_restore: float = 3.0  # from then on, besides `cpu_launch`: read the checkpoint. Together below 5 s (5.5)

    @classmethod
    def in_place(cls, o: Overheads) -> Costs:
        """Return costs with a sidecar: the pod stays, the training process restarts (SideCar scheduling, III-A)."""
        stop = o.ckpt + o.proc_term
        return cls(o.k8s_init, o.proc_init, stop, o.proc_init, o.proc_init, stop, leave=o.k8s_term)

    @classmethod
    def relaunched(cls, o: Overheads) -> Costs:
        """Return costs with a new pod, which Kubernetes launches once its GPUs are free (the paper's baselines)."""
        stop = o.ckpt + o.proc_term + o.k8s_term
        begin = o.k8s_init + o.proc_init
        return cls(0.0, begin, stop, begin, begin, stop)


Expected = Callable[[ClusterSnapshot, Job], float | None]
"""Expected seconds of a job's present task, computed at its start; None if unknown."""


@dataclass(frozen=True)
class PolicySetup:
    """One policy to simulate, with its costs, profiles and settings."""

    name: str
    plan: Planner
    costs: Costs
    profiles: Profiles  # true speeds, and the overheads that the policy assumes
    settings: Settings = DEFAULTS  # the simulator reads cool-down and monitor intervals
    says: str = ""  # note for the report
    expected: Expected | None = None  # as the coordinator records it when a task starts
    costs_by_type: Mapping[str, Costs] = field(default_factory=dict)  # of job types whose own costs are known


@dataclass(frozen=True, slots=True)
class Outage:
    """A node failure, which ends every process on the node, and the repair."""

    node: str
    at_s: float
    back_s: float


@dataclass(frozen=True)
class Workload:
    """One draw of a workload; the same name and seed give the same jobs."""

    name: str
    seed: int
    jobs: tuple[Submission, ...]
    nodes: tuple[Node, ...]
    policy_setups: tuple[PolicySetup, ...]
    observations: Observations = field(default_factory=Observations)  # of tasks that ended before
    contention: float = 0.0  # share of speed that all jobs on a CPU node lose per further job (5.6)
    outages: Iterable[Outage] = ()  # by time; iterated anew by each run
    shares: Shares = field(default_factory=Shares)  # queues and users
    used: Mapping[JobOwner, float] = field(default_factory=dict)  # decayed GPU-seconds at the beginning
    reservations: tuple[Reservation, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)  # GPU-hours by `budget_key`, to the end of the simulation
    emulated: tuple[str, ...] = ("all GPUs, nodes and jobs: nothing ran on real ones",)
    fitted: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
