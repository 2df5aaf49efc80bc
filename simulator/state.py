"""Defines the mutable state of a simulation: jobs, GPUs with their holders, and the outcome so far.

Changed by the simulator's parts, read by the reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from adaptive_scheduler.decision import Decision, Hold
from adaptive_scheduler.profiles.growth import UNMEASURED, UNSEEN, Efficiency, Growth
from adaptive_scheduler.snapshot import JobState
from simulator.event_queue import Event
from simulator.scenario import Submission


class SimulationStuck(Exception):
    """Raised when no event is left, but jobs are; the text names one."""


@dataclass(slots=True, eq=False)
class SimulatedGpu:
    """A GPU. `owner`: job to which it is promised; `holder`: job whose process has held it since `since`."""

    id: str
    node: str
    owner: str | None = None
    holder: str | None = None
    since: float = 0.0
    is_up: bool = True  # whether its node is
    faulty: bool = False  # from the beginning to the end; a job that has it then may keep it


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """An active job. `gpus`: its GPUs after the current operation; `holds`: the GPUs that its process holds."""

    given: Submission
    state: JobState = "submitted"
    node: str | None = None
    busy: bool = False
    generation: int = 0  # number of stops
    done: float = 0.0  # iterations, at `since`
    since: float = 0.0
    iteration_s: float = 0.0  # 0 while it does not train
    ahead: Event | None = None  # next event: end of task, crash, or step of the operation
    saved: float = 0.0  # iterations in its last checkpoint
    trained_since_s: float = 0.0  # when it saved or read that checkpoint
    began_s: float | None = None  # time of the first start decision
    queued_s: float | None = None  # when it last came back into the queue
    started_s: float | None = None  # when it last began to train after the queue
    trained_from_s: float | None = None
    finished_s: float | None = None
    stopped_at: float | None = None
    moves: bool = False  # moving to another node
    stopped_s: float = 0.0  # total standstill for changes
    cooling_until: float = 0.0
    grew_from: int = 0  # GPU count before it last grew
    reshape_cost_s: float | None = None

    # on GPUs
    gpus: list[SimulatedGpu] = field(default_factory=list)
    holds: list[SimulatedGpu] = field(default_factory=list)
    stopped_gpus: int = 0  # GPU count at its last stop
    waits_for_gpus: bool = False  # ready to begin once its GPUs are free
    victims: list[SimulatedJob] = field(default_factory=list)  # jobs that shrink for it after its launch
    gives_to: SimulatedJob | None = None  # newcomer that it shrinks for

    # on CPU
    demand: float = math.inf  # cores that its current task can use
    share: float = 0.0  # cores it has
    rate: float | None = None  # last measured iterations per second
    rated_on: float | None = None  # cores during that measurement
    used: float = 0.0  # core-seconds, at `since`
    used_before: float = 0.0  # of these, before its current node
    cpu_limit: float | None = None
    limit_end: Event | None = None
    limit_until_s: float | None = None
    limits: int = 0  # number of changes of its limit
    growth: Growth = UNSEEN
    efficiency: Efficiency = UNMEASURED
    migrated_s: float | None = None
    rebalanced: bool = False
    move_refused_s: float | None = None

    # tasks, deadlines, failures
    task: int = 0  # index of the current task
    task_s: float = 0.0  # run time of the task before its last requeue
    task_from_s: float | None = None  # start of its current run
    resumes: bool = False  # it continues a task from a checkpoint
    expected_s: float | None = None
    preempts: int = 0
    yields_to: tuple[str, ...] = ()
    crashes: int = 0
    outages: int = 0  # number of node failures that hit it
    lost_s: float = 0.0  # training time that was repeated

    def done_by(self, now: float) -> float:
        return self.done + (now - self.since) / self.iteration_s if self.iteration_s else self.done

    def ran_by(self, now: float) -> float:
        """Return the run time of the current task in seconds."""
        return self.task_s + (0.0 if self.task_from_s is None else now - self.task_from_s)

    def used_by(self, now: float) -> float:
        return self.used + (now - self.since) * self.share

    @property
    def next_stop(self) -> float:
        """Return the iterations at which the task ends or the process crashes."""
        crash = self.given.iterations * self.given.fails_at[self.crashes] if self.may_crash else math.inf
        return min(self.task_end, crash)

    @property
    def task_end(self) -> float:
        return self.given.task_ends[self.task]

    @property
    def may_crash(self) -> bool:
        return self.crashes < len(self.given.fails_at)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Time for which a job's process held a GPU; for a job on CPU `gpu` is its node."""

    gpu: str
    job: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """Cores in use and jobs training on a node from `at_s` on."""

    node: str
    at_s: float
    cores: float
    jobs: int


@dataclass
class SimulationOutcome:
    """Everything that happened in a run."""

    jobs: list[SimulatedJob]
    held: list[Occupancy] = field(default_factory=list)
    stops: list[Occupancy] = field(default_factory=list)  # standstills of reshaped jobs
    on_cpu: list[Occupancy] = field(default_factory=list)
    loads: list[CpuLoad] = field(default_factory=list)
    trails: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict
    )  # by job: (seconds, iterations done) whenever its speed changes
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    waits: dict[str, tuple[float, Hold]] = field(default_factory=dict)  # by job: its last reason to wait
    adds: int = 0
    removes: int = 0
    moves: int = 0  # to another node, with or without another GPU count
    limits: int = 0
    requeues: int = 0
    pending_at_last_arrival: int = 0
