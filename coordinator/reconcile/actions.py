"""The steps that `lifecycle.next_step` may answer. Each is persisted or carried out by the reconciler.

A step's `name` is also the name of its two failpoints (`before:NAME`, `after:NAME`), so a new step
cannot be forgotten by the crash tests.
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


@dataclass(frozen=True)
class WriteGpu:
    """Claim, free or mark a GPU, if `expect` still holds."""

    name: str
    gpu: str
    expect: GpuChanges
    changes: GpuChanges


@dataclass(frozen=True)
class RequestLaunch:
    """Ask the platform for this job's launch, or for that of the newcomer that it moves to.

    Of a gang again with other GPUs: for a pod more or less.
    """

    newcomer: bool = False
    gpu_ids: tuple[str, ...] | None = None  # of all pods, where it is not the job's own
    name: ClassVar[str] = "launch"


@dataclass(frozen=True)
class RequestRemoval:
    """Ask the platform to remove this job's launch, or another one of it."""

    launch: int | None = None
    why: str = ""
    name: ClassVar[str] = "remove"


@dataclass(frozen=True)
class StopTrainer:
    """Tell the sidecar to stop training under this generation."""

    generation: int
    name: ClassVar[str] = "stop"


@dataclass(frozen=True)
class StartTrainer:
    """Tell the sidecar to train on these GPUs under this generation."""

    generation: int
    gpu_ids: tuple[str, ...]
    checkpoint: str | None
    name: ClassVar[str] = "start"


@dataclass(frozen=True)
class Wait:
    """Nothing to do until something is heard, or `seconds` have passed (None: only when heard)."""

    seconds: float | None
    why: str = ""


Step = WriteJob | WriteGpu | RequestLaunch | RequestRemoval | StopTrainer | StartTrainer | Wait

NAMES = (
    "book victim", "claim", "launch", "initialized", "stop", "grant", "free", "occupy", "start", "running",
    "take back", "undo", "put down", "restart", "completed", "failed", "cancelled", "remove", "close", "renumber",
    "yielded",
)  # fmt: skip
