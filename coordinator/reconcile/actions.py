"""Steps that `lifecycle.next_step` returns; the reconciler persists or performs them.

A step's `name` also names its two failpoints (`before:NAME`, `after:NAME`), so the crash tests cover each new step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coordinator.model.events import JobEvent
from coordinator.model.tables import GpuChanges, JobChanges


@dataclass(frozen=True)
class WriteJob:
    """Persist fields of a job, if its version is still the one that was looked at."""

    name: str
    changes: JobChanges
    event: JobEvent  # recorded once the changes are persisted
    job: str | None = None  # another job than the one being reconciled
    earlier: JobEvent | None = None  # what else the changes persist, recorded before `event`


@dataclass(frozen=True)
class WriteGpu:
    """Claim, free or mark a GPU, if `expect` still holds."""

    name: str
    gpu: str
    expect: GpuChanges
    changes: GpuChanges


@dataclass(frozen=True)
class RequestLaunch:
    """Ask the platform for this job's launch, or for the new launch of a move.

    Repeated with other GPUs, it adds or removes pods of a gang.
    """

    newcomer: bool = False
    gpu_ids: tuple[str, ...] | None = None  # of all pods, where it is not the job's own
    name: ClassVar[str] = "launch"


@dataclass(frozen=True)
class RequestRemoval:
    """Ask the platform to remove the job's present launch, or the one given."""

    launch: int | None = None
    why: str = ""
    name: ClassVar[str] = "remove"


@dataclass(frozen=True)
class StopTrainer:
    """Command the sidecar to stop training under this generation."""

    generation: int
    in_place: bool = False  # it goes on in the same launch at once
    freeze: bool = False  # the driver keeps it in host memory instead
    wait: bool = True  # until one that saves when asked has answered; else it is killed after its grace
    gpu_ids: tuple[str, ...] = ()  # on which it goes on in place; empty: not known
    name: ClassVar[str] = "stop"


@dataclass(frozen=True)
class StartTrainer:
    """Command the sidecar to train on these GPUs under this generation."""

    generation: int
    gpu_ids: tuple[str, ...]
    checkpoint: str | None
    name: ClassVar[str] = "start"


@dataclass(frozen=True)
class Wait:
    """Nothing to do until a report has news or `seconds` have passed (None: until a report has news, or is overdue)."""

    seconds: float | None
    why: str = ""


Step = WriteJob | WriteGpu | RequestLaunch | RequestRemoval | StopTrainer | StartTrainer | Wait

NAMES = (
    "book victim",
    "claim",
    "launch",
    "initialized",
    "stop",
    "grant",
    "free",
    "occupy",
    "start",
    "running",
    "take back",
    "undo",
    "put down",
    "restart",
    "completed",
    "failed",
    "cancelled",
    "remove",
    "close",
    "renumber",
    "yielded",
    "hold",
)
