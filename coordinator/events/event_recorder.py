"""What follows from a step that was taken: events for people, stages and overheads, who must look next.

The reconciler and the loop call `told` after each persisted change. Nothing here decides or writes
state; a failure here loses a line of history at most.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from coordinator.events import stages
from coordinator.events.event_log import EventLog
from coordinator.events.metrics import Metrics
from coordinator.events.stages import Marks
from coordinator.model import missed_deadlines
from coordinator.model import states as s
from coordinator.model.records import GpuRecord, JobRecord, Operation
from coordinator.ports import Clock
from coordinator.telemetry.ingest import Telemetry
from coordinator.workqueue import WorkQueue

WAKES_THE_LOOP = frozenset(
    {
        "running",
        "completed",
        "failed",
        "cancelled",
        "undone",
        "yielded",
        "restarting",
        "gpu",
        "removed",
        "refused",
        "submitted",
    }
)


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
    ) -> None:
        self.event_log, self.telemetry, self.metrics = event_log, telemetry, metrics
        self.clock, self.queue, self.wake = clock, queue, wake
        self._marks: dict[str, Marks] = {}

    def told(self, job: JobRecord, event: Mapping[str, Any]) -> None:
        kind = str(event["type"])
        self._mark(job, kind, event)
        if kind == "gpu":
            self._gpu(event["before"], event["after"])
        elif kind == "running":
            self._running(job, event["before"].operation)
        else:
            self._log(job, event)
        if kind in (s.COMPLETED, s.FAILED) and (missed := missed_deadlines.event(job, self.clock.wall())):
            self._log(job, missed)
        if kind == "removed":
            self._removed(job)
        elif kind == "completed":
            self.telemetry.completed(job)
        self._wake(job, kind, event)

    def _log(self, job: JobRecord, event: Mapping[str, Any]) -> None:
        public = {k: v for k, v in event.items() if k not in ("before", "after", "step", "sent_at")}
        state = {"job_id": job.raw_id, "state": job.state, "generation": job.generation, "num_gpus": len(job.gpu_ids)}
        self.event_log.append({**state, **public})

    def _mark(self, job: JobRecord, kind: str, event: Mapping[str, Any]) -> None:
        """Remember when things happened, for the stages."""
        if kind == "refused":  # what was never let in is never closed
            return
        now = self.clock.now()
        if kind in ("decided", "adjusting"):
            newcomer = self._marks.get(str(event.get("for")))  # a victim is booked by its newcomer's decision
            self._marks[job.id] = Marks(event.get("decide_s", newcomer and newcomer.decide_s), {"decided": now})
        marks = self._marks.setdefault(job.id, Marks())
        if kind == "launching":
            marks.at["launch"] = now
        elif kind == "initialized":
            marks.at["initialized"] = now
            victim = job.operation.peer if job.operation else None
            if victim in self._marks:
                self._marks[victim].at["newcomer ready"] = now
        elif kind in ("stop sent", "start sent"):
            marks.at[kind] = event["sent_at"]
        elif kind == "removing":
            marks.at["removing"] = now

    def _gpu(self, before: GpuRecord, after: GpuRecord) -> None:
        self.event_log.append(
            {
                "type": "gpu", "gpu_id": after.id, "state": after.state,
                "job_id": after.doc.get("job_id"), "held_by": after.doc.get("held_by"),
            }
        )  # fmt: skip
        for job_id in {before.job, before.held_by, after.job, after.held_by} - {None}:
            self.queue.add(str(job_id))

    def _running(self, job: JobRecord, op: Operation | None) -> None:
        beat = self.telemetry.reports.of(job)
        if op is None or beat is None:
            return
        marks = self._marks.setdefault(job.id, Marks())
        body: dict[str, Any] = {"type": "started", "stages_s": stages.start_stages(beat, marks)}
        if op.kind != "start":
            body = {
                "type": "restarted",
                "stages_s": stages.reshape_stages(op, beat, marks),
                "gap_s": stages.moved_gap_s(op, beat, marks) if op.kind == "move" else stages.gap_s(op, beat),
            }
        if op.kind in ("reshape", "move"):
            body |= self._changed(job, op)
            self.telemetry.reshaped(job)
            self.metrics.reshaped(body["direction"], body["gap_s"], body["stages_s"])
        pids = {"sidecar_pid": beat.sidecar_pid, "shim_pid": beat.shim.shim_pid, "trainer_pid": beat.shim.trainer_pid}
        self._log(job, {**body, **pids, "decision_id": op.decision})
        self._overheads(job, **stages.learned(op, beat, marks))

    @staticmethod
    def _changed(job: JobRecord, op: Operation) -> dict[str, Any]:
        facts = {
            "direction": stages.direction(op), "from_gpus": len(op.origin), "to_gpus": len(op.to),
            "for": op.doc.get("for"), "how": op.how,
        }  # fmt: skip
        if op.kind == "move":
            return {"type": "moved", **facts, "from_node": op.doc.get("from_node"), "to_node": job.node}
        return {"type": "reshaped", **facts}

    def _removed(self, job: JobRecord) -> None:
        removing = self._marks.setdefault(job.id, Marks()).at.get("removing")
        self._overheads(job, k8s_term=stages.span(removing, self.clock.now()))

    def _overheads(self, job: JobRecord, **measured: float | None) -> None:
        self.telemetry.estimator.overheads(job.job_type, self.telemetry.profiles, **measured)

    def _wake(self, job: JobRecord, kind: str, event: Mapping[str, Any]) -> None:
        self.queue.add(job.id)
        for record in (job, event.get("before")):
            if isinstance(record, JobRecord) and record.operation and record.operation.peer:
                self.queue.add(record.operation.peer)
        if kind in WAKES_THE_LOOP:
            self.wake.set()
        if kind == "closed":
            self._marks.pop(job.id, None)
            self.telemetry.reports.forget(job.id)
            self.telemetry.profiler.forget(job)
