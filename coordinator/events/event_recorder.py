"""Records events: appends them to the log, measures stages and overheads, and queues the jobs that must be reconciled.

The reconciler and the loop call `EventRecorder.record` after each persisted change. Nothing here decides or writes
state, so a failure here costs at most a line of history.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from coordinator.errors import ReshapeError
from coordinator.events import stages
from coordinator.events.event_log import EventLog
from coordinator.events.metrics import Metrics
from coordinator.events.stages import Marks
from coordinator.events.traces import ReshapeTraces
from coordinator.model import events as e
from coordinator.model import progress
from coordinator.model.records import JobRecord, Operation
from coordinator.ports import Clock, Store, moment_of
from coordinator.telemetry.ingest import Telemetry
from coordinator.workqueue import WorkQueue

log = logging.getLogger(__name__)

RESHAPES = ("reshape", "move")  # the operations that change the GPUs of a training
WAKES_THE_LOOP = (
    e.JobRunning,
    e.JobCompleted,
    e.JobFailed,
    e.JobCancelled,
    e.OperationUndone,
    e.JobYielded,
    e.JobRestarting,
    e.GpuChanged,
    e.LaunchRemoved,
    e.JobRefused,
    e.JobSubmitted,
)


Notice = Callable[[JobRecord, e.JobEvent], None]
CountLost = Callable[[str, str | None, float], None]


class EventRecorder:
    """Thread-safe."""

    def __init__(
        self,
        event_log: EventLog,
        telemetry: Telemetry,
        metrics: Metrics,
        clock: Clock,
        queue: WorkQueue,
        wake: threading.Event,
        store: Store,
        traces: ReshapeTraces | None = None,
    ) -> None:
        """`wake` is set by each event after which the decision loop may decide otherwise."""
        self.event_log, self.telemetry, self.metrics = event_log, telemetry, metrics
        self.clock, self.queue, self.wake = clock, queue, wake
        self._store, self.traces = store, traces
        self._marks: dict[str, Marks] = {}
        self.notice: Notice = lambda job, event: None  # what tells people outside of it
        self.count_lost: CountLost = lambda job_id, newcomer, gpu_s: None  # what keeps accounts of GPUs

    def record(self, job: JobRecord, event: e.JobEvent, before: JobRecord | None = None) -> None:
        """Record `event` of `job`, which is as it was persisted; `before`: the job before the reconciler changed it."""
        self._mark(job, event)
        match event:
            case e.GpuChanged():
                self._gpu(event)
            case e.JobRunning():
                self._running(job, before.operation if before else None)
            case _:
                self._append(job, event)
        match event:
            case e.JobCompleted() | e.JobFailed():
                if missed := progress.missed_event(job, self.clock.wall()):
                    self._append(job, missed)
                    self.notice(job, missed)
            case e.LaunchRemoved():
                self._removed(job)
        op = before.operation if before else None
        if isinstance(event, e.OperationUndone) and op is not None and op.kind in RESHAPES:
            self.metrics.undone(stages.direction(op))
        if isinstance(event, e.JobCompleted):
            self.telemetry.completed(job)
        if isinstance(event, e.JobCompleted | e.JobFailed | e.JobCancelled) and job.submit_ts:
            self.metrics.ended(job.state, self._since_submission_s(job))
        self.notice(job, event)
        self._queue_followers(job, event, before)

    def _since_submission_s(self, job: JobRecord) -> float:
        return moment_of(self.clock).passed_s(job.submit_ts, job.doc.get("submit_mark"))

    def close(self) -> None:
        if self.traces is not None:
            self.traces.close()

    def _append(self, job: JobRecord, event: e.JobEvent) -> None:
        state = {"job_id": job.raw_id, "state": job.state, "generation": job.generation, "num_gpus": len(job.gpu_ids)}
        shown = event.public()
        if (owner := job.doc.get("owner_uid")) is not None:
            state["owner_uid"] = owner
        if (namespace := job.doc.get("namespace")) is not None:
            state["namespace"] = namespace
        self.event_log.append({**state, **shown})
        about = {"job": job.id, "generation": job.generation, "event": shown["type"]}
        if decision := shown.get("decision_id") or (job.operation and job.operation.decision):
            about["decision"] = decision
        log.info("job %s: %s%s", job.id, shown["type"], f": {event.reason}" if event.reason else "", extra=about)

    def _mark(self, job: JobRecord, event: e.JobEvent) -> None:
        """Remember when the parts of an operation happened, from which `stages` are worked out."""
        if isinstance(event, e.JobRefused | e.NoticeSent | e.NoticeFailed):
            return  # of a job that was never let in, or may be closed already, they would stay
        now = self.clock.now()
        match event:
            case e.JobDecided():
                self._marks[job.id] = Marks(event.decide_s, {"decided": now})
            case e.VictimBooked():  # the newcomer's decision covers its victim, too
                newcomer = self._marks.get(str(event.newcomer))
                self._marks[job.id] = Marks(newcomer.decide_s if newcomer else None, {"decided": now})
        marks = self._marks.setdefault(job.id, Marks())
        match event:
            case e.LaunchRequested():
                marks.at["launch"] = now
            case e.JobInitialized():
                marks.at["initialized"] = now
                for victim in job.operation.victims if job.operation else ():
                    if victim in self._marks:
                        self._marks[victim].at["newcomer ready"] = now
            case e.StopSent():
                marks.at["stop sent"] = event.sent_at
            case e.StartSent():
                marks.at["start sent"] = event.sent_at
            case e.RemovalRequested():
                marks.at["removing"] = now

    def _gpu(self, event: e.GpuChanged) -> None:
        self.event_log.append(event.public())
        before, after = event.before, event.after
        for job_id in {before.job, before.held_by, after.job, after.held_by} - {None}:
            self.queue.add(str(job_id))

    def _running(self, job: JobRecord, op: Operation | None) -> None:
        """Append what a finished operation measured, and learn its overheads."""
        beat = self.telemetry.reports.newest_of_job(job)
        if op is None or beat is None:
            return
        marks = self._marks.setdefault(job.id, Marks())
        traced: dict[str, Any] = {
            "sidecar_pid": beat.sidecar_pid,
            "shim_pid": beat.shim.shim_pid,
            "trainer_pid": beat.shim.trainer_pid,
            "decision_id": op.decision,
        }
        if op.kind == "start":
            if job.generation == 1:  # later ones waited for something else
                self.metrics.started(self._since_submission_s(job))
            self._append(job, e.JobStarted(stages_s=stages.start_stages(beat, marks), **traced))
        else:
            gap_s = stages.moved_gap_s(op, beat, marks) if op.kind == "move" else stages.gap_s(op, beat)
            self._restarted(job, op, stages_s=stages.reshape_stages(op, beat, marks), gap_s=gap_s, **traced)
        self._overheads(job, **stages.learned(op, beat, marks))

    def _restarted(self, job: JobRecord, op: Operation, **measured: Any) -> None:
        if op.kind not in RESHAPES:
            self._append(job, e.JobRestarted(**measured))
            return
        measured |= {
            "direction": stages.direction(op),
            "from_gpus": len(op.origin),
            "to_gpus": len(op.to),
            "newcomer": op.doc.get("for"),
            "how": op.how,
        }
        self.telemetry.reshaped(job)
        if op.kind == "move":
            self._measured(op, measured["gap_s"])
        if (gap_s := measured["gap_s"]) is not None:
            in_place = op.kind == "reshape" and op.how == "in place"
            predicted_s = self.telemetry.predicted_reshape_s(job) if in_place else None
            self.metrics.gap(gap_s, len(op.to), predicted_s)
            with suppress(ReshapeError):  # no account is worth an error
                self.count_lost(job.id, op.doc.get("for"), gap_s * len(op.to))
        self.metrics.reshaped(measured["direction"], measured["gap_s"], measured["stages_s"])
        if self.traces is not None:
            names = ("decision_id", "direction", "from_gpus", "to_gpus", "newcomer", "how", "gap_s")
            about = {"job": job.id, "generation": job.generation, "node": job.node, **{n: measured[n] for n in names}}
            self.traces.reshaped(op.kind, about, measured["stages_s"], self.clock.wall())
        if op.kind == "move":
            self._append(job, e.JobMoved(**measured, from_node=op.doc.get("from_node"), to_node=job.node))
        else:
            self._append(job, e.JobReshaped(**measured))

    def _measured(self, op: Operation, gap_s: float | None) -> None:
        """Write the standstill of a move beside what its decision predicted; no receipt is worth an error.

        That of a reshape is in its job's document (`coordinator/scheduling/receipts.py:stood_still`).
        """
        if op.decision is not None and gap_s is not None:
            with suppress(ReshapeError):
                self._store.update("decisions", op.decision, {}, {"gap_s": gap_s})

    def _removed(self, job: JobRecord) -> None:
        removing = self._marks.setdefault(job.id, Marks()).at.get("removing")
        self._overheads(job, k8s_term=stages.span(removing, self.clock.now()))

    def _overheads(self, job: JobRecord, **measured: float | None) -> None:
        self.telemetry.estimator.overheads(job.job_type, self.telemetry.profiles, **measured)

    def _queue_followers(self, job: JobRecord, event: e.JobEvent, before: JobRecord | None) -> None:
        """Queue the job and its peers for the reconciler, wake the loop if it may decide otherwise now."""
        self.queue.add(job.id)
        for record in (job, before):
            for peer in record.operation.peers if record is not None and record.operation else ():
                self.queue.add(peer)
        if isinstance(event, WAKES_THE_LOOP):
            self.wake.set()
        if isinstance(event, e.JobClosed):
            self._marks.pop(job.id, None)
            self.telemetry.reports.forget_job(job.id)
            self.telemetry.profiler.forget_job(job)
