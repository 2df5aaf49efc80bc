"""Defines the frozen snapshot of cluster and jobs on which decisions are made.

Built by the coordinator from its cache and by the simulator from its state. Immutable, so that tentative decisions
never touch real state. Times are seconds on the caller's clock of `now`; only differences matter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, count, repeat
from operator import attrgetter, is_not
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from adaptive_scheduler.profiles.growth import UNMEASURED, UNSEEN, Efficiency, Growth
from adaptive_scheduler.profiles.observations import Observations, Resource
from adaptive_scheduler.profiles.profiles import Profiles, StatePath
from adaptive_scheduler.reservation import Reservation
from adaptive_scheduler.shares import JobOwner, Shares

JobState = Literal["submitted", "initializing", "initialized", "running", "adjusting", "restarting"]
GpuState = Literal["idle", "reserved", "in use", "faulty"]
Preemption = Literal["any", "shrink", "never"]
"""GPUs that others may take of a job by right: all (it is suspended), all but its smallest count, none."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `job` is the job it is promised to, `held_by` the job that physically uses it."""

    id: str
    state: GpuState = "idle"
    job: str | None = None
    held_by: str | None = None
    used_by_others: bool = False  # it works, and is faulty only while somebody else uses it
    pool: str | None = None  # of a node with pools: whose jobs may use it; empty: nobody's, as no placeholder holds it
    asked_back: bool = False  # faulty because its placeholder is to be given back
    overdue: bool = False  # likewise, and there is no time left: whoever uses it must be gone


@dataclass(frozen=True)
class Node:
    """One host: its GPUs of one type ("" without GPUs), and the CPU cores that jobs trained on CPU share."""

    name: str
    gpu_type: str
    gpus: tuple[Gpu, ...] = ()
    schedulable: bool = True
    drained: bool = False  # by an operator: what trains here is to leave; never schedulable
    cordoned: bool = False  # on its cluster: never schedulable
    cores: float = 0.0  # for jobs trained on CPU; 0: closed to them
    memory: float = 0.0  # bytes, likewise; 0: unknown, never a reason to refuse
    used_cores: float = 0.0  # more, that others use just now without having requested them; not part of `cores`
    used_memory: float = 0.0  # likewise
    lent_cores: float = 0.0  # that others request and are not seen to use: no part of `cores`, but no limit keeps them
    used_by: str = ""  # for people: who uses how much
    cpu_use: float = 0.0  # R(w, t): share of the cores in use lately, 0..1 (S18)
    memory_use: float = 0.0  # likewise; breaks ties of cpu_use
    heard: bool = True  # False while heartbeats are missing: no moves to or from it
    kept_for: str | None = None  # an aged job for which it is reserved: no other starts or grows there

    @cached_property
    def idle(self) -> int:
        """GPUs that could be given away now: neither reserved nor faulty, on an open node."""
        return sum(g.state == "idle" for g in self.gpus) if self.open else 0

    @property
    def open(self) -> bool:
        """True if jobs may start or grow here."""
        return self.schedulable and self.heard and self.kept_for is None

    @cached_property
    def healthy(self) -> int:
        return sum(g.state != "faulty" for g in self.gpus)

    @cached_property
    def used_by_others(self) -> int:
        """GPUs that somebody else uses now."""
        return sum(g.used_by_others for g in self.gpus)

    @property
    def working(self) -> int:
        """GPUs that jobs can have sooner or later."""
        return self.healthy + self.used_by_others


@dataclass(frozen=True, slots=True)
class Worker:
    """The part of a job on one host."""

    node: str
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a job with the requests of each replica; tasks run one after another (Slaml)."""

    name: str
    cores: float = 0.0
    memory: float = 0.0  # bytes
    gpus: int = 0
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Job:
    """One unfinished job. `num_gpus` is its present count, or the one after the operation under way; 0 in the queue.
    `optional` is sorted; (0,) for a job trained on CPU. `busy`: an operation is under way, which excludes another
    one. `iterations_left` is None for an unknown length; with a target accuracy the caller predicts it
    (`convergence.py`)."""

    id: str
    type: str
    state: JobState
    optional: tuple[int, ...]
    submit_s: float = 0.0
    num_gpus: int = 0
    node: str | None = None
    iterations_left: float | None = None
    iterations_done: float = 0.0
    running_s: float = 0.0  # seconds trained so far
    busy: bool = False  # an operation of it is under way, or it is held back: no other one may begin
    rigid: bool = False  # has not shown that it saves and resumes: must not be stopped
    freezes: bool = False  # rigid, but it can wait for a GPU of its node with its state in memory
    frozen: bool = False  # it waits so now
    unfrozen: str = ""  # why that was not possible when it was tried
    forced: bool = False  # an operator accepts the loss of work: `wanted` may stop it although rigid
    unsaved_s: float = 0.0  # seconds of training lost if it were stopped now
    cooling_until: float = 0.0  # no reshape before this time
    grew_from: int = 0  # count before it last grew; 0: not grown, or unknown
    wanted: int | None = None  # GPU count that an operator requested
    suspended: bool = False  # gives up what it has, and waits until it is resumed
    held: str = ""  # of a suspended one that did not start again: that, for people
    reshape_cost_s: float | None = None  # its own measured reshape cost
    state_bytes: float = 0.0  # of its newest checkpoint; 0: not known
    state_path: StatePath = "disk"  # that its state takes to its next process on the same host
    stays: bool = False  # its checkpoints do not outlive its launch: avoid relaunching
    keeps_pod: bool = False  # it stays because its pod cannot be made anew, wherever its checkpoints lie
    relaunches: bool = False  # its launch cannot change GPUs: each reshape is a relaunch
    gpu_type: str | None = None  # required by the user
    pinned: str | None = None  # required node, by Volcano (X12) or the user
    max_workers: int = 1  # most hosts it may be spread over
    gpus_per_pod: int = 0  # of a gang: GPUs of each pod; 0: no gang
    pods: tuple[str, ...] = ()  # of a running gang: node of each pod; added and removed at the end
    workers: tuple[Worker, ...] = ()  # GPUs per host, if several; else empty: all on `node`
    time_limit_s: float | None = None  # seconds that it may train; None: no limit
    time_is_up: bool = False  # it is to save and end now, for this limit
    target_reached: bool = False  # its measured value has reached its target: it ends
    target: float | None = None  # target and last value: for people
    value: float | None = None
    epoch_iterations: int | None = None  # iterations per epoch, if known: for people
    length_unsure: bool = False  # `iterations_left` is only its maximum: no visible progress to its target

    # trained on CPU (SpeCon, FlowCon)
    beside_cores: float = 0.0  # requested by its pod for our sidecar, beside what its task requests
    beside_memory: float = 0.0  # likewise, bytes
    demand: float = math.inf  # cores it can use when alone
    rate: float | None = None  # iterations per second lately; None: not measured
    share: float | None = None  # cores during that; None: its water-filling share
    cpu_limit: float | None = None  # cores; None: no limit
    limit_until_s: float | None = None  # when the limit expires
    limitable: bool = True  # False: its launch cannot be limited
    growth: Growth = UNSEEN
    efficiency: Efficiency = UNMEASURED
    migrated_s: float | None = None  # when its one speculative move was decided; None: not yet
    rebalanced: bool = False  # its one rebalancing move is used up
    move_refused_s: float | None = None  # time of the last move refused for its makespan

    # deadlines (Slaml)
    sla_s: float | None = None  # from submission; None: no deadline
    tasks: tuple[Task, ...] = ()  # tasks left, the present one first
    estimate_s: float | None = None  # the user's estimate of all tasks left
    expected_s: float | None = None  # expected time of its present task, when that started
    task_s: float = 0.0  # seconds the present task has run
    preempts: int = 0  # times it was requeued
    yields_to: tuple[str, ...] = ()  # jobs that must start before it restarts

    # rights
    owner: str = ""  # user whose job it is; empty: nobody is named
    pool: str = ""  # whose GPUs it uses (`pools.py`); empty: it uses GPUs of nodes without pools
    queue: str = ""  # that it names; `Shares.queue_of` says in which it is
    priority: int = 0  # higher goes first, among the jobs of its owner
    weight: float = 1.0  # its completion time counts so often in plans, among the jobs of its owner
    preemption: Preemption = "any"
    queued_s: float | None = None  # when it last came into the queue; None: when it was submitted
    started_s: float | None = None  # when it last began to train; None: not known

    @property
    def uses_cpu(self) -> bool:
        """True if it trains without GPUs."""
        return self.optional == (0,)

    @property
    def stoppable(self) -> bool:
        """True if its training may be stopped to continue elsewhere, with other GPUs or later."""
        return not self.rigid

    @property
    def yields(self) -> bool:
        """True if it may give all its GPUs up to continue later."""
        return self.stoppable or self.freezes

    @property
    def cores(self) -> float:
        """Cores that all replicas of its present task request, and its pod beside; 0: none requested."""
        return self.beside_cores + (self.tasks[0].cores * self.tasks[0].replicas if self.tasks else 0.0)

    @property
    def memory(self) -> float:
        """Bytes of memory, likewise."""
        return self.beside_memory + (self.tasks[0].memory * self.tasks[0].replicas if self.tasks else 0.0)


def aligned(before: tuple[Any, ...], jobs: tuple[Any, ...]) -> tuple[Any, list[int]]:
    """Return by job or node its position in `before`, -1 for one that is not the same object, and where these are."""
    new = [*compress(count(), map(is_not, jobs, before)), *range(len(before), len(jobs))]
    if len(new) < max(1, len(jobs) // 2):  # else one in front may have come or gone
        at = np.arange(len(jobs))
        at[new] = -1
        return at, new
    places = dict(zip(map(id, before), count(), strict=False))
    at = np.fromiter(map(places.get, map(id, jobs), repeat(-1)), np.intp, len(jobs))
    return at, np.flatnonzero(at < 0).tolist()


class _OnCpu(dict[str, tuple[Job, ...]]):
    def __missing__(self, node: str) -> tuple[Job, ...]:
        return ()


@dataclass(frozen=True)
class ClusterSnapshot:
    """The complete input of a decision."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    profiles: Profiles = field(default_factory=Profiles)
    observations: Observations = field(default_factory=Observations)
    shares: Shares = field(default_factory=Shares)
    used: Mapping[JobOwner, float] = field(default_factory=dict)  # decayed GPU-seconds by owner
    reservations: tuple[Reservation, ...] = ()  # that have not ended
    elsewhere: Mapping[JobOwner, int] = field(default_factory=dict)  # GPUs that count in limits: of jobs of other pools
    spent: Mapping[str, float] = field(default_factory=dict)  # GPU-hours of this week or month by `budget_key`

    def then(self, **changes: Any) -> ClusterSnapshot:
        """Return a later snapshot, of which only what has changed is worked out again. Decide on both in one thread."""
        later = replace(self, **changes)
        kept = ["job", "queue", "placed"] if later.jobs is self.jobs else []
        kept += ["node", "gpu_types", "capacity", "_allowed"] if later.nodes is self.nodes else []
        vars(later).update({name: vars(self)[name] for name in kept if name in vars(self)}, _held=self._held)
        return later

    @cached_property
    def _held(self) -> dict[object, tuple[tuple[object, ...], tuple[Any, ...], Any]]:
        """By function: what it was given last, the jobs or nodes, and what it returned. Later snapshots share it."""
        return {}

    @cached_property
    def _aligned(self) -> dict[tuple[int, int], tuple[object, Any, list[int]]]:
        return {}

    def rows(self, of: Callable[..., Any], *given: object) -> NDArray[np.float64]:
        """By job: the number, or as many for each, that `of(job, *given)` returns. It must depend on nothing else: only
        jobs that have changed since an earlier snapshot are worked out again. Callers must not write to it."""
        return self._rows(self.jobs, of, given)

    def node_rows(self, of: Callable[..., Any], *given: object) -> NDArray[np.float64]:
        """Likewise by node."""
        return self._rows(self.nodes, of, given)

    def _rows(self, things: tuple[Any, ...], of: Callable[..., Any], given: tuple[object, ...]) -> NDArray[np.float64]:
        was, before, rows = self._held.get(of, (None, (), np.zeros(0)))
        if before is not things or was != given:
            before = before if was == given else ()
            key = id(before), id(things)
            if key not in self._aligned:  # one answer for all functions; `before` is kept, so that its id stays its own
                self._aligned[key] = before, *aligned(before, things)
            _, at, new = self._aligned[key]
            found = np.array([of(things[i], *given) for i in new], np.float64)
            rows = rows[at] if len(new) < len(things) else found
            rows[new] = found.reshape(-1, *rows.shape[1:])
            self._held[of] = given, things, rows
        return rows

    def once(self, make: Callable[..., T], *given: object, fits: Callable[[T], bool] = lambda made: True) -> T:
        """Return `make(*given)`, or what it returned for an earlier snapshot if that was given the same and `fits`."""
        was, _, made = self._held.get(make, (None, (), None))
        if was != given or not fits(cast(T, made)):
            made = make(*given)
            self._held[make] = given, (), made
        return cast(T, made)

    def where(self, test: Callable[..., bool], *given: object) -> tuple[Job, ...]:
        """Return the jobs for which `test(job, *given)` holds, in order. As in `rows`, it depends on nothing else."""
        return tuple(map(self.jobs.__getitem__, np.flatnonzero(self.rows(test, *given)).tolist()))

    @cached_property
    def job(self) -> Mapping[str, Job]:
        return dict(zip(map(attrgetter("id"), self.jobs), self.jobs, strict=True))

    @cached_property
    def node(self) -> Mapping[str, Node]:
        return dict(zip(map(attrgetter("name"), self.nodes), self.nodes, strict=True))

    @cached_property
    def gpu_types(self) -> Mapping[str, str]:
        """By name of a node."""
        return dict(zip(self.node, map(attrgetter("gpu_type"), self.node.values()), strict=True))

    @cached_property
    def capacity(self) -> Mapping[Resource, float]:
        """Total working GPUs, cores and bytes of all schedulable nodes (D3)."""
        gpus, cores, memory = map(math.fsum, self.node_rows(_capacity).reshape(-1, 3).T.tolist())
        return {"gpus": int(gpus), "cores": cores, "memory": memory}

    def allowed(self, gpu_type: str | None, pinned: str | None) -> tuple[Node, ...]:
        """Return the nodes with GPUs of this type and name, or of any (None)."""
        if (gpu_type, pinned) not in self._allowed:
            nodes = [n for n in self.nodes if n.gpus]
            nodes = nodes if gpu_type is None else [n for n in nodes if n.gpu_type == gpu_type]
            self._allowed[gpu_type, pinned] = tuple(n for n in nodes if pinned in (None, n.name))
        return self._allowed[gpu_type, pinned]

    @cached_property
    def _allowed(self) -> dict[tuple[str | None, str | None], tuple[Node, ...]]:
        return {}

    @cached_property
    def has_idle(self) -> bool:
        return any(node.idle for node in self.nodes)

    @cached_property
    def faulty(self) -> tuple[Node, ...]:
        """Nodes with a faulty GPU."""
        return tuple(node for node in self.nodes if node.healthy < len(node.gpus))

    @cached_property
    def drained(self) -> frozenset[str]:
        """Names of the nodes that an operator drains."""
        return frozenset(self.nodes[i].name for i in np.flatnonzero(self.node_rows(_is_drained)).tolist())

    @cached_property
    def queue(self) -> tuple[Job, ...]:
        """Jobs that wait for their first GPUs, oldest first (ties by id)."""
        return tuple(sorted(self.where(_is_queued), key=attrgetter("submit_s", "id")))

    @cached_property
    def placed(self) -> tuple[Job, ...]:
        """Unfinished jobs that have GPUs or were promised some."""
        return self.where(is_placed)

    @cached_property
    def placed_by_user(self) -> Mapping[str, tuple[Job, ...]]:
        """Return by user with a reservation the jobs that have GPUs on a node."""
        # For all of them at once: `where` would look at every job anew for each user.
        users = frozenset(one.user for one in self.reservations if one.user is not None)
        found: dict[str, list[Job]] = {}
        for job in self.where(_is_placed_of_one, users) if users else ():
            found.setdefault(job.owner, []).append(job)
        return {user: tuple(jobs) for user, jobs in found.items()}

    @cached_property
    def on_cpu(self) -> Mapping[str, tuple[Job, ...]]:
        """By node: jobs trained there on CPU, or about to be; none for any other name."""
        by_node = _OnCpu()
        for job in self.where(_uses_cpu):
            if job.node is not None and job.node in self.node:
                by_node[job.node] += (job,)
        return by_node


def has_deadline(job: Job) -> bool:
    return job.sla_s is not None


def _is_queued(job: Job) -> bool:
    return job.state == "submitted" and not job.busy and not job.suspended


def is_placed(job: Job) -> bool:
    return job.num_gpus > 0 and job.node is not None


def _is_placed_of_one(job: Job, users: frozenset[str]) -> bool:
    return job.owner in users and job.num_gpus > 0 and job.node is not None


def _is_drained(node: Node) -> bool:
    return node.drained


def _capacity(node: Node) -> tuple[float, float, float]:
    return (node.healthy, node.cores, node.memory) if node.schedulable else (0.0, 0.0, 0.0)


def _uses_cpu(job: Job) -> bool:
    return job.uses_cpu
