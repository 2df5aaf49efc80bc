"""The frozen picture of the cluster that decisions are made on.

Whoever wants a decision builds one of these: the coordinator from its books, the simulator from its
world. Nothing here changes, so trying a move never touches the real state.

Times are seconds on whatever clock the caller uses for `now`; only differences matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from adaptive_scheduler.profiles import Profiles

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
    """One host and its GPUs, all of one type."""

    name: str
    gpu_type: str
    gpus: tuple[Gpu, ...] = ()
    schedulable: bool = True

    @cached_property
    def idle(self) -> int:
        """How many GPUs could be given away now: neither reserved nor faulty."""
        return sum(g.state == "idle" for g in self.gpus) if self.schedulable else 0

    @property
    def healthy(self) -> int:
        return sum(g.state != "faulty" for g in self.gpus)


@dataclass(frozen=True, slots=True)
class Job:
    """One unfinished job.

    `num_gpus` is the count it has, or will have once the operation under way is done; 0 while it
    waits in the queue. `optional` is sorted. `leased` says that an operation is under way, so that
    nobody may begin another one. `iterations_left` is None where no length is known.
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
    cooling_until: float = 0.0  # no reshape before this time
    wanted: int | None = None  # an operator's explicit wish for a GPU count
    reshape_cost_s: float | None = None  # its own measured reshape cost, where one was measured
    gpu_type: str | None = None  # only nodes of this type, where the user said so


@dataclass(frozen=True)
class ClusterSnapshot:
    """Everything a decision may look at."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    profiles: Profiles = field(default_factory=Profiles)

    @cached_property
    def job(self) -> Mapping[str, Job]:
        return {j.id: j for j in self.jobs}

    @cached_property
    def node(self) -> Mapping[str, Node]:
        return {n.name: n for n in self.nodes}

    @cached_property
    def queue(self) -> tuple[Job, ...]:
        """Jobs that wait for their first GPU, oldest first (ties by id)."""
        waiting = (j for j in self.jobs if j.state == "submitted" and not j.leased)
        return tuple(sorted(waiting, key=lambda j: (j.submit_s, j.id)))

    @cached_property
    def placed(self) -> tuple[Job, ...]:
        """Unfinished jobs that have GPUs or were promised some."""
        return tuple(j for j in self.jobs if j.num_gpus > 0 and j.node is not None)
