"""The frozen picture of the cluster that decisions are made on.

Whoever wants a decision builds one of these: the coordinator from its books, the simulator from its
world. Nothing here changes, so trying a move never touches the real state.

Times are seconds on whatever clock the caller uses for `now`; only differences matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Literal

from adaptive_scheduler.profiles.growth import UNMEASURED, UNSEEN, Efficiency, Growth
from adaptive_scheduler.profiles.observations import Observations, Resource
from adaptive_scheduler.profiles.profiles import Profiles

JobState = Literal["submitted", "initializing", "initialized", "running", "adjusting", "restarting"]
GpuState = Literal["idle", "reserved", "in use", "faulty"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `job` is whom it is promised to; `held_by` who physically uses it."""

    id: str
    state: GpuState = "idle"
    job: str | None = None
    held_by: str | None = None


@dataclass(frozen=True)
class Node:
    """One host: its GPUs, all of one type, and the CPU cores that jobs trained on CPU share.

    A node without GPUs has gpu_type "".
    """

    name: str
    gpu_type: str
    gpus: tuple[Gpu, ...] = ()
    schedulable: bool = True
    cores: float = 0.0  # for jobs trained on CPU; 0: none may
    memory: float = 0.0  # bytes for the same; 0: not known, never a reason to refuse
    cpu_use: float = 0.0  # R(w, t): share of the cores in use lately, 0..1 (S18)
    memory_use: float = 0.0  # likewise; breaks ties of cpu_use
    heard: bool = True  # False while its heartbeats are missing: nothing moves to or from it
    kept_for: str | None = None  # a job that has waited very long: nobody else starts or grows there (aging)

    @cached_property
    def idle(self) -> int:
        """How many GPUs could be given away now: neither reserved nor faulty."""
        return sum(g.state == "idle" for g in self.gpus) if self.open else 0

    @property
    def open(self) -> bool:
        """Whether jobs may start or grow here at all."""
        return self.schedulable and self.heard and self.kept_for is None

    @property
    def healthy(self) -> int:
        return sum(g.state != "faulty" for g in self.gpus)


@dataclass(frozen=True, slots=True)
class Worker:
    """The part of a job on one host; a job of several workers has several."""

    node: str
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Task:
    """One of the tasks of a job, which run one after another (seed 003); what each replica asks for."""

    name: str
    cores: float = 0.0
    memory: float = 0.0  # bytes
    gpus: int = 0
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Job:
    """One unfinished job.

    `num_gpus` is the count it has, or will have once the operation under way is done; 0 while it
    waits in the queue. `optional` is sorted; (0,) for a job trained on CPU. `leased` says that an
    operation is under way, so that nobody may begin another one. `iterations_left` is None where no
    length is known; with a target accuracy the caller predicts it (`convergence.py`).
    """

    id: str
    type: str
    state: JobState
    optional: tuple[int, ...]
    submit_s: float = 0.0
    num_gpus: int = 0
    node: str | None = None
    iterations_left: float | None = None
    iterations_done: float = 0.0
    running_s: float = 0.0  # how long it has trained so far
    leased: bool = False
    rigid: bool = False  # it has not shown that it saves and resumes: nothing may stop its training
    forced: bool = False  # an operator agreed to lose that work: `wanted` may stop it although it is rigid
    unsaved_s: float = 0.0  # seconds of training that would be done again if it were stopped now
    cooling_until: float = 0.0  # no reshape before this time
    grew_from: int = 0  # the count it had before it last grew; 0: it has not grown, or it is not known
    wanted: int | None = None  # an operator's explicit wish for a GPU count
    reshape_cost_s: float | None = None  # its own measured reshape cost, where one was measured
    stays: bool = False  # its checkpoints do not outlive its launch: no other launch of it without need
    relaunches: bool = False  # its launch cannot take other GPUs: each reshape is another launch
    gpu_type: str | None = None  # only nodes of this type, where the user said so
    pinned: str | None = None  # only this node, where Volcano (X12) or the user said so
    max_workers: int = 1  # on how many hosts it may be spread
    gpus_per_pod: int = 0  # of a gang: GPUs of each of its pods; 0: it is one process on one node, or a plain spread
    pods: tuple[str, ...] = ()  # of a gang that runs: the node of each pod; pods are added, and leave, at the end
    workers: tuple[Worker, ...] = ()  # GPUs per host, where it runs on several; else empty, and `node` has all
    target_reached: bool = False  # the measured value has reached the target that ends the job
    target: float | None = None  # that target, and the value measured last: for people
    value: float | None = None
    epoch_iterations: int | None = None  # iterations of one epoch, where that is known: for people
    length_unsure: bool = False  # `iterations_left` is only its maximum: no progress towards its target was visible

    # trained on CPU (seeds 000 to 002)
    demand: float = math.inf  # cores it can use when alone
    rate: float | None = None  # iterations per second lately; None: not measured
    share: float | None = None  # cores it had meanwhile; None: what the others on its node leave it
    cpu_limit: float | None = None  # cores; None: no limit
    limit_until_s: float | None = None  # when the limit lifts itself
    limitable: bool = True  # False: its launch cannot be limited, and whoever runs it said why
    growth: Growth = UNSEEN
    efficiency: Efficiency = UNMEASURED
    migrated_s: float | None = None  # when its one speculative move was decided on; None: still to be had
    rebalanced: bool = False  # its one rebalancing move is spent
    move_refused_s: float | None = None  # a move was last refused for its makespan

    # deadlines (seed 003)
    sla_s: float | None = None  # from submission; None: no deadline
    tasks: tuple[Task, ...] = ()  # those left, the present one first
    estimate_s: float | None = None  # the user's own guess of what the tasks left take together
    expected_s: float | None = None  # what its present task was expected to take when it started
    task_s: float = 0.0  # how long the present task has run
    preempts: int = 0  # how often it was sent back to the queue
    yields_to: tuple[str, ...] = ()  # jobs that must have started before it may again

    @property
    def uses_cpu(self) -> bool:
        """Whether it trains without any GPU."""
        return self.optional == (0,)

    @property
    def stoppable(self) -> bool:
        """Whether its training may be stopped to go on elsewhere, with other GPUs or later, without being asked."""
        return not self.rigid

    @property
    def cores(self) -> float:
        """What its present task asks for, all replicas together; 0: nothing in particular."""
        return self.tasks[0].cores * self.tasks[0].replicas if self.tasks else 0.0

    @property
    def memory(self) -> float:
        """Likewise, in bytes."""
        return self.tasks[0].memory * self.tasks[0].replicas if self.tasks else 0.0


@dataclass(frozen=True)
class ClusterSnapshot:
    """Everything a decision may look at."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    profiles: Profiles = field(default_factory=Profiles)

    observations: Observations = field(default_factory=Observations)

    @cached_property
    def job(self) -> Mapping[str, Job]:
        return {j.id: j for j in self.jobs}

    @cached_property
    def node(self) -> Mapping[str, Node]:
        return {n.name: n for n in self.nodes}

    @cached_property
    def capacity(self) -> Mapping[Resource, float]:
        """What all nodes that are open have together: working GPUs, cores, bytes (D3)."""
        nodes = [node for node in self.nodes if node.schedulable]
        return {
            "gpus": sum(n.healthy for n in nodes),
            "cores": math.fsum(n.cores for n in nodes),
            "memory": math.fsum(n.memory for n in nodes),
        }

    @cached_property
    def queue(self) -> tuple[Job, ...]:
        """Jobs that wait for their first GPU, oldest first (ties by id)."""
        waiting = [j for j in self.jobs if j.state == "submitted" and not j.leased]
        return tuple(sorted(waiting, key=attrgetter("submit_s", "id")))

    @cached_property
    def placed(self) -> tuple[Job, ...]:
        """Unfinished jobs that have GPUs or were promised some."""
        return tuple(j for j in self.jobs if j.num_gpus > 0 and j.node is not None)

    @cached_property
    def on_cpu(self) -> Mapping[str, tuple[Job, ...]]:
        """By node: jobs trained there on CPU, or about to be."""
        by_node: dict[str, list[Job]] = {node.name: [] for node in self.nodes}
        for job in self.jobs:
            if job.uses_cpu and job.node in by_node:
                by_node[job.node].append(job)
        return {name: tuple(jobs) for name, jobs in by_node.items()}
