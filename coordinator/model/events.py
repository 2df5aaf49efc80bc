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
    """A job was let in; `problems` is empty."""

    problems: list[str]


class JobRefused(JobEvent, frozen=True, tag="refused"):
    """A document was not let in; `problems` say what to correct."""

    problems: list[str]


class JobDecided(JobEvent, frozen=True, tag="decided"):
    """The scheduler decided on a start, reshape, move, requeue, finish or end of the job."""

    decision_id: str
    decide_s: float


class JobWaits(JobEvent, frozen=True, tag="waits"):
    """The job must wait, or for another reason than before."""

    sentence: str


class HoldWithdrawn(JobEvent, frozen=True, tag="hold withdrawn"):
    """What held a running job back does so no longer."""


class JobStays(JobEvent, frozen=True, tag="stays"):
    """The job asked for another node and stays where it is."""

    sentence: str


class JobWarned(JobEvent, frozen=True, tag="warned"):
    """A deadline is not expected to hold."""

    sentence: str


class DeadlineMissed(JobEvent, frozen=True, tag="missed"):
    """The job ended, or still runs, after its deadline."""

    late_s: float
    sentence: str


class ProgressLost(JobEvent, frozen=True, tag="lost"):
    """The training did steps again after a stop."""

    sentence: str


class SavingTold(JobEvent, frozen=True, tag="saving"):
    """The training cannot be saved now, and so is not reshaped, or it can be saved again."""

    sentence: str


class JobStalled(JobEvent, frozen=True, tag="stalled"):
    """The training lives and makes no step, for far longer than it ever took, or does nothing after it was asked to
    stop; nothing is stopped or killed for it."""

    sentence: str


class StepsAgain(JobEvent, frozen=True, tag="steps again"):
    """A training that had stalled makes steps again, or does something, or has ended."""


class CpuLimited(JobEvent, frozen=True, tag="limited"):
    """The training was limited to `cores`."""

    decision_id: str
    cores: float | None
    sentence: str


class CpuReleased(JobEvent, frozen=True, tag="released"):
    """A CPU limit ended."""

    decision_id: str
    cores: float | None
    sentence: str


# an operation, in the order of its steps


class VictimBooked(JobEvent, frozen=True, tag="adjusting"):
    """A victim gives GPUs and keeps `to`, so that the job `for` can start."""

    to: int
    newcomer: Any = msgspec.field(name="for")


class LaunchRequested(JobEvent, frozen=True, tag="launching"):
    """The job's processes or pods were asked for."""


class PodsRequested(JobEvent, frozen=True, tag="scaling"):
    """Another number of pods was asked for, of a gang."""

    pods: int


class JobInitialized(JobEvent, frozen=True, tag="initialized"):
    """The sidecar is up; the job waits for its GPUs."""


class StopSent(JobEvent, frozen=True, tag="stop sent"):
    """The training was told to save and exit."""

    generation: int
    sent_at: float


class ResourcesGranted(JobEvent, frozen=True, tag="granted"):
    """The job has its new GPUs on record; a `sentence` says what was not saved."""

    gpus: int
    sentence: str


class StartSent(JobEvent, frozen=True, tag="start sent"):
    """The sidecar was told to start the training."""

    generation: int
    sent_at: float


class JobRunning(JobEvent, frozen=True, tag="running"):
    """The first step was seen. Recorded as one of the next four, which hold what was measured."""


class JobStarted(JobEvent, frozen=True, tag="started"):
    """The first step of a job that started."""

    stages_s: dict[str, float]
    sidecar_pid: int
    shim_pid: int
    trainer_pid: int | None
    decision_id: str | None


class JobRestarted(JobEvent, frozen=True, tag="restarted"):
    """The first step after a restart."""

    stages_s: dict[str, float]
    gap_s: float | None
    sidecar_pid: int
    shim_pid: int
    trainer_pid: int | None
    decision_id: str | None


class JobReshaped(JobEvent, frozen=True, tag="reshaped"):
    """The first step after a reshape; `how` says in place or by another launch."""

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
    """The first step on another node."""

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
    """The operation goes on under a higher generation, since the shim knew one."""


class OperationUndone(JobEvent, frozen=True, tag="undone"):
    """An operation ended without effect; the job runs as before, or is back in the queue."""

    sentence: str


class JobRestarting(JobEvent, frozen=True, tag="restarting"):
    """The training ended unasked and is started again."""

    sentence: str


class JobYielded(JobEvent, frozen=True, tag="yielded"):
    """The job saved and went back to the queue."""

    sentence: str


class JobHeld(JobEvent, frozen=True, tag="held"):
    """The training does not start again, and waits until its user resumes it."""

    sentence: str


# the end of a job or of its launch


class JobCompleted(JobEvent, frozen=True, tag="completed"):
    """The job ended as it should."""

    sentence: str


class JobFailed(JobEvent, frozen=True, tag="failed"):
    """The job ended, and is not tried again."""

    sentence: str


class JobCancelled(JobEvent, frozen=True, tag="cancelled"):
    """The job ended since it was cancelled."""

    sentence: str


class NoticeSent(JobEvent, frozen=True, tag="told"):
    """A webhook or command was told of the job's end or missed deadline."""

    sentence: str


class NoticeFailed(JobEvent, frozen=True, tag="not told"):
    """It could not be told, and is not tried again."""

    sentence: str


class RemovalRequested(JobEvent, frozen=True, tag="removing"):
    """The removal of the job's launch was asked for."""

    launch: int


class LaunchRemoved(JobEvent, frozen=True, tag="removed"):
    """Nothing of the launch is left."""


class JobClosed(JobEvent, frozen=True, tag="closed"):
    """Nothing of the job is left to do."""


# who asked for it


class UserAsked(JobEvent, frozen=True, tag="asked"):
    """A user of a shared machine changed something: `verb` of `about`, which is a job, a node or a table."""

    user: str
    verb: str
    about: str


# GPUs


class GpuChanged(JobEvent, frozen=True, tag="gpu"):
    """A GPU has another state, job or holder."""

    before: GpuRecord
    after: GpuRecord

    def public(self) -> Doc:
        """The GPU as it is now, without fields of the job."""
        doc = self.after.doc
        place = {"gpu_id": self.after.id, "state": self.after.state}
        return {"type": "gpu", **place, "job_id": doc.get("job_id"), "held_by": doc.get("held_by")}
