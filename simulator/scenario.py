"""What a simulation is given: jobs, nodes, who decides, and what every change costs. Only frozen values.

Built by `workloads.py`, read by `world.py` and `report.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol, runtime_checkable

from adaptive_scheduler.decision import Decision
from adaptive_scheduler.profiles.observations import Observations
from adaptive_scheduler.profiles.profiles import Overheads, Profiles
from adaptive_scheduler.settings import DEFAULTS, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Task
from simulator.accuracy_targets import AccuracyTarget


class NoWorkload(Exception):
    """It cannot be built; the text says what to do."""


Planner = Callable[[ClusterSnapshot, float], tuple[Decision, ...]]
"""Who decides: `decide()` itself, or a baseline of the same shape."""


@runtime_checkable
class TimedPlanner(Protocol):
    """A planner that is also asked at a time of its own, though nothing happens: one of rounds, or of a log."""

    def __call__(self, snapshot: ClusterSnapshot, now: float) -> tuple[Decision, ...]: ...

    def next_look_s(self, now: float) -> float | None:
        """When to be asked next, after `now`; the world asks for this after each answer. None: never."""
        ...


Curve = Callable[[float], float]
"""Evaluation value (a loss, of any scale) as a function of the share of the work that is done, 0..1 (5.6)."""


@dataclass(frozen=True, slots=True)
class CpuWork:
    """What a job trained on CPU needs: `core_s` core-seconds, at most `demand` cores at a time."""

    core_s: float
    demand: float = 1.0
    curve: Curve | None = None
    kind: str = ""  # the model, for the report


@dataclass(frozen=True, slots=True)
class Submission:
    """One job as it is handed in."""

    id: str
    type: str
    arrival_s: float
    optional: tuple[int, ...]
    iterations: float
    fixed_gpus: int  # what the default baseline runs it on (G17)
    believed_iterations: float | None = None  # what the scheduler thinks instead; None: it knows
    cpu: CpuWork | None = None  # trained on CPU: then `optional` is (0,), and `iterations` go with the work
    node: str | None = None  # where Volcano has placed it already (X12); None: the scheduler chooses
    tasks: tuple[Task, ...] = ()  # one after another (seed 003); the next goes through the queue again
    task_iterations: tuple[float, ...] = ()  # of each task; together `iterations`. Empty: they are equally long
    estimate_s: float | None = None  # the user's own guess of what it takes
    sla_s: float | None = None  # deadline, from submission
    max_workers: int = 1
    fails_at: tuple[float, ...] = ()  # shares of its work, 0..1, at each of which its process crashes once
    accuracy_target: AccuracyTarget | None = (
        None  # it trains until a target accuracy, and what is believed follows from its curve
    )

    @property
    def task_ends(self) -> tuple[float, ...]:
        """After how many iterations each of its tasks is done; a job without tasks is one."""
        count = max(1, len(self.tasks))
        lengths = self.task_iterations or (self.iterations / count,) * count
        return (*list(accumulate(lengths))[:-1], self.iterations)

    def demand(self, task: int) -> float:
        """Cores that this task of a job trained on CPU can use: those it asks for, else those of the whole job."""
        asked = self.tasks[task].cores * self.tasks[task].replicas if self.tasks else 0.0
        return asked or (self.cpu.demand if self.cpu is not None else math.inf)

    def left(self, done: float) -> float:
        """How many iterations the scheduler believes are left."""
        if self.accuracy_target is not None:
            return self.accuracy_target.left(done)
        if self.believed_iterations is None:
            return max(0.0, self.iterations - done)
        return max(1.0, self.believed_iterations - done)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a change really takes, in seconds, in the order it happens.

    One mechanism differs from another only in these numbers: a sidecar launches before it has GPUs
    (early initialization) and keeps its pod; a relaunched pod does everything with its GPUs in hand.
    """

    launch: float  # a newcomer, before it needs its GPUs
    begin: float  # a newcomer, from having its GPUs to its first iteration
    stop: float  # a reshaped job, from its last iteration to letting its GPUs go
    shrunk: float  # from there to its first iteration on fewer GPUs
    grown: float  # on more GPUs
    end: float  # a finished job, from its last iteration to letting its GPUs go
    leave: float = 0.0  # a job that leaves its node, after `stop`, until its GPUs are free (sequence D)
    checkpoint_every_s: float = 600.0  # of training; what a process that is lost cannot lose. Takes no time
    cpu_launch: float = 0.0  # a job trained on CPU, before it uses any core
    cpu_save: float = 2.0  # it leaves its node: checkpoint and end
    cpu_restore: float = 3.0  # from there on, besides `cpu_launch`: read the checkpoint. Together below 5 s (5.5)

    @classmethod
    def in_place(cls, o: Overheads) -> Costs:
        """By the sidecar: the pod stays, only the training process ends and begins (seed 004, III-A)."""
        stop = o.ckpt + o.proc_term
        return cls(o.k8s_init, o.proc_init, stop, o.proc_init, o.proc_init, stop, leave=o.k8s_term)

    @classmethod
    def relaunched(cls, o: Overheads) -> Costs:
        """By a new pod, which Kubernetes brings up once its GPUs are free (the paper's baselines)."""
        stop = o.ckpt + o.proc_term + o.k8s_term
        begin = o.k8s_init + o.proc_init
        return cls(0.0, begin, stop, begin, begin, stop)


Expected = Callable[[ClusterSnapshot, Job], float | None]
"""Seconds that the present task of a job is expected to take, asked as it starts; None: nobody knows."""


@dataclass(frozen=True)
class PolicySetup:
    """A policy with all that it brings along."""

    name: str
    plan: Planner
    costs: Costs
    profiles: Profiles  # speeds, which are true, and the overheads that the policy reckons with
    settings: Settings = DEFAULTS  # for what the world itself has to know: cool-down, the monitors' intervals
    says: str = ""  # how it differs from what its name says, for the report
    expected: Expected | None = None  # what the coordinator would note when a task starts


@dataclass(frozen=True, slots=True)
class Outage:
    """A node fails, with every process on it, and is back later."""

    node: str
    at_s: float
    back_s: float


@dataclass(frozen=True)
class Workload:
    """One draw of a workload: the same name and seed give the same jobs."""

    name: str
    seed: int
    jobs: tuple[Submission, ...]
    nodes: tuple[Node, ...]
    policy_setups: tuple[PolicySetup, ...]
    observations: Observations = field(default_factory=Observations)  # of tasks that ended before
    contention: float = 0.0  # share of everybody's speed that each further job on a CPU node takes away (5.6)
    outages: Iterable[Outage] = ()  # by time; begun anew by each policy's run
    emulated: tuple[str, ...] = ("all GPUs, nodes and jobs: nothing ran on real ones",)
    fitted: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
