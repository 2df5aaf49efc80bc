"""Events of jobs and GPUs: one class for each kind that the loop and the reconciler record. Pure.

The tag of a class is the `type` under which the store, HTTP and the event stream show it; its fields follow in the
order in which they stand here.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from coordinator.model.records import Doc, GpuRecord, JobRecord

PRIVATE = frozenset({"sent_at"})  # on the coordinator's monotonic clock: meaningless outside this process


class JobEvent(msgspec.Struct, frozen=True, tag_field="type", tag=""):
    """Base of all kinds."""

    def public(self) -> Doc:
        """The fields to store and show, `type` first."""
        fields: Doc = msgspec.to_builtins(self)
        return {name: value for name, value in fields.items() if name not in PRIVATE}

    @property
    def reason(self) -> str:
        """The sentence for people; empty if this kind has none."""
        return str(getattr(self, "sentence", ""))


class RecordEvent(Protocol):
    """Records an event of a job whose change is already persisted; `before`: the job before that change."""

    def __call__(self, job: JobRecord, event: JobEvent, before: JobRecord | None = None) -> None: ...


# intake and decisions


class JobSubmitted(JobEvent, frozen=True, tag="submitted"):
    problems: list[str]


class JobRefused(JobEvent, frozen=True, tag="refused"):
    problems: list[str]


class JobDecided(JobEvent, frozen=True, tag="decided"):
    decision_id: str
    decide_s: float


class JobWaits(JobEvent, frozen=True, tag="waits"):
    sentence: str


class JobStays(JobEvent, frozen=True, tag="stays"):
    sentence: str


class JobWarned(JobEvent, frozen=True, tag="warned"):
    sentence: str


class DeadlineMissed(JobEvent, frozen=True, tag="missed"):
    late_s: float
    sentence: str


class ProgressLost(JobEvent, frozen=True, tag="lost"):
    sentence: str


class CpuLimited(JobEvent, frozen=True, tag="limited"):
    decision_id: str
    cores: float | None
    sentence: str


class CpuReleased(JobEvent, frozen=True, tag="released"):
    decision_id: str
    cores: float | None
    sentence: str


# an operation, in the order of its steps


class VictimBooked(JobEvent, frozen=True, tag="adjusting"):
    """A victim shrinks to `to` GPUs so that the job `newcomer` can start."""

    to: int
    newcomer: Any = msgspec.field(name="for")


class LaunchRequested(JobEvent, frozen=True, tag="launching"):
    pass


class PodsRequested(JobEvent, frozen=True, tag="scaling"):
    pods: int


class JobInitialized(JobEvent, frozen=True, tag="initialized"):
    pass


class StopSent(JobEvent, frozen=True, tag="stop sent"):
    generation: int
    sent_at: float


class ResourcesGranted(JobEvent, frozen=True, tag="granted"):
    gpus: int
    sentence: str


class StartSent(JobEvent, frozen=True, tag="start sent"):
    generation: int
    sent_at: float


class JobRunning(JobEvent, frozen=True, tag="running"):
    """The first step was seen. Recorded as one of the next four, which hold what was measured."""


class JobStarted(JobEvent, frozen=True, tag="started"):
    stages_s: dict[str, float]
    sidecar_pid: int
    shim_pid: int
    trainer_pid: int | None
    decision_id: str | None


class JobRestarted(JobEvent, frozen=True, tag="restarted"):
    stages_s: dict[str, float]
    gap_s: float | None
    sidecar_pid: int
    shim_pid: int
    trainer_pid: int | None
    decision_id: str | None


class JobReshaped(JobEvent, frozen=True, tag="reshaped"):
    stages_s: dict[str, float]
    gap_s: float | None
    direction: str
    from_gpus: int
    to_gpus: int
    newcomer: Any = msgspec.field(name="for")
    how: str
    sidecar_pid: int
    shim_pid: int
    trainer_pid: int | None
    decision_id: str | None


class JobMoved(JobEvent, frozen=True, tag="moved"):
    stages_s: dict[str, float]
    gap_s: float | None
    direction: str
    from_gpus: int
    to_gpus: int
    newcomer: Any = msgspec.field(name="for")
    how: str
    from_node: Any
    to_node: str | None
    sidecar_pid: int
    shim_pid: int
    trainer_pid: int | None
    decision_id: str | None


class OperationRenumbered(JobEvent, frozen=True, tag="renumbered"):
    pass


class OperationUndone(JobEvent, frozen=True, tag="undone"):
    sentence: str


class JobRestarting(JobEvent, frozen=True, tag="restarting"):
    sentence: str


class JobYielded(JobEvent, frozen=True, tag="yielded"):
    sentence: str


# the end of a job or of its launch


class JobCompleted(JobEvent, frozen=True, tag="completed"):
    sentence: str


class JobFailed(JobEvent, frozen=True, tag="failed"):
    sentence: str


class JobCancelled(JobEvent, frozen=True, tag="cancelled"):
    sentence: str


class RemovalRequested(JobEvent, frozen=True, tag="removing"):
    launch: int


class LaunchRemoved(JobEvent, frozen=True, tag="removed"):
    pass


class JobClosed(JobEvent, frozen=True, tag="closed"):
    pass


# GPUs


class GpuChanged(JobEvent, frozen=True, tag="gpu"):
    before: GpuRecord
    after: GpuRecord

    def public(self) -> Doc:
        """The GPU as it is now, without fields of the job."""
        doc = self.after.doc
        place = {"gpu_id": self.after.id, "state": self.after.state}
        return {"type": "gpu", **place, "job_id": doc.get("job_id"), "held_by": doc.get("held_by")}
