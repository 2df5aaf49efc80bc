"""What is going on in a simulated cluster: jobs on their way, GPUs with their holders, and all that happened.

Called by the world and its parts, which change it, and by the reports, which read it.
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
    """Nothing more will happen, but jobs are left; the text names one."""


@dataclass(slots=True, eq=False)
class SimulatedGpu:
    """`owner` is whom it is promised to; `holder` whose process is on it, since `since`."""

    id: str
    node: str
    owner: str | None = None
    holder: str | None = None
    since: float = 0.0
    is_up: bool = True  # its node is


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """A job on its way. `gpus` are those it will have once its operation is done, `holds` those it is on."""

    given: Submission
    state: JobState = "submitted"
    node: str | None = None
    leased: bool = False
    generation: int = 0  # how often it was stopped
    done: float = 0.0  # iterations, at `since`
    since: float = 0.0
    iteration_s: float = 0.0  # 0 while it does not train
    ahead: Event | None = None  # the end of its task, a crash before it, or the next step of its operation
    saved: float = 0.0  # iterations in its last checkpoint
    trained_since_s: float = 0.0  # it has trained since that checkpoint, or since it read it
    began_s: float | None = None  # its first start was decided
    trained_from_s: float | None = None
    finished_s: float | None = None
    stopped_at: float | None = None
    moves: bool = False  # it is on its way to another node
    stopped_s: float = 0.0  # all that it stood still for changes, together
    cooling_until: float = 0.0
    grew_from: int = 0  # the count it had before it last grew
    reshape_cost_s: float | None = None

    # on GPUs
    gpus: list[SimulatedGpu] = field(default_factory=list)
    holds: list[SimulatedGpu] = field(default_factory=list)
    stopped_gpus: int = 0  # how many it was on when it last stopped
    waits_for_gpus: bool = False  # it could begin if its GPUs were free
    victim: SimulatedJob | None = None  # who is to shrink for it once it is launched
    gives_to: SimulatedJob | None = None  # the newcomer that it is to shrink for

    # on CPU
    demand: float = math.inf  # cores that its present task can use
    share: float = 0.0  # cores it has
    rate: float | None = None  # iterations per second while it last trained
    rated_on: float | None = None  # on so many cores
    used: float = 0.0  # core-seconds, at `since`
    used_before: float = 0.0  # of them, before it came to its node
    cpu_limit: float | None = None
    limit_end: Event | None = None
    limit_until_s: float | None = None
    limits: int = 0  # how often its limit was changed
    growth: Growth = UNSEEN
    efficiency: Efficiency = UNMEASURED
    migrated_s: float | None = None
    rebalanced: bool = False
    move_refused_s: float | None = None

    # tasks, deadlines, failures
    task: int = 0  # the present one
    task_s: float = 0.0  # how long it had run when it was last stopped for the queue
    task_from_s: float | None = None  # it has run since then
    resumes: bool = False  # it was stopped in the middle of its task, and has a checkpoint to read
    expected_s: float | None = None
    preempts: int = 0
    yields_to: tuple[str, ...] = ()
    crashes: int = 0
    outages: int = 0  # how often its node failed under it
    lost_s: float = 0.0  # seconds of training that had to be done again

    def done_by(self, now: float) -> float:
        return self.done + (now - self.since) / self.iteration_s if self.iteration_s else self.done

    def ran_by(self, now: float) -> float:
        """How long its present task has run."""
        return self.task_s + (0.0 if self.task_from_s is None else now - self.task_from_s)

    def used_by(self, now: float) -> float:
        return self.used + (now - self.since) * self.share

    @property
    def next_stop(self) -> float:
        """The iterations at which it next does something else: its task ends, or its process crashes."""
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
    """A GPU was held by a job's process from `begin_s` to `end_s`; of a job trained on CPU, `gpu` is its node."""

    gpu: str
    job: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """From `at_s` on, so many cores of a node were in use, and so many jobs trained there."""

    node: str
    at_s: float
    cores: float
    jobs: int


@dataclass
class SimulationOutcome:
    """All that happened."""

    jobs: list[SimulatedJob]
    held: list[Occupancy] = field(default_factory=list)
    stops: list[Occupancy] = field(default_factory=list)  # when a reshaped job stood still, on the GPUs it then had
    on_cpu: list[Occupancy] = field(default_factory=list)
    loads: list[CpuLoad] = field(default_factory=list)
    trails: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # of jobs on CPU: second, work done
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    waits: dict[str, tuple[float, Hold]] = field(default_factory=dict)  # by job: why it last waited
    adds: int = 0
    removes: int = 0
    moves: int = 0  # to another node, also where the number of GPUs changed
    limits: int = 0
    requeues: int = 0
    pending_at_last_arrival: int = 0
