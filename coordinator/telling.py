"""What follows from a step that was taken: events for people, stages and overheads, who must look next.

The reconciler and the loop call `told` after each persisted change. Nothing here decides or writes
state; a failure here loses a line of history at most.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from adaptive_scheduler.profiles import Profiles
from coordinator.core import lateness, stages
from coordinator.core import states as s
from coordinator.core.records import GpuRecord, JobRecord, Operation
from coordinator.core.stages import Marks
from coordinator.journal import Journal
from coordinator.learning import Learner
from coordinator.loop import Loop
from coordinator.metrics import Metrics
from coordinator.ports import Clock
from coordinator.profiler import Profiler
from coordinator.reports import Reports
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


class Telling:
    """Thread-safe."""

    def __init__(
        self,
        journal: Journal,
        reports: Reports,
        learner: Learner,
        profiler: Profiler,
        metrics: Metrics,
        clock: Clock,
        queue: WorkQueue,
    ) -> None:
        self.journal, self.reports, self.metrics = journal, reports, metrics
        self.learner, self.profiler = learner, profiler
        self.clock, self.queue = clock, queue
        self.loop: Loop | None = None  # set once it exists; the loop tells, too
        self.wake = threading.Event()
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
        if kind in (s.COMPLETED, s.FAILED) and (missed := lateness.event(job, self.clock.wall())):
            self._log(job, missed)
        if kind == "removed":
            self._removed(job)
        elif kind == "completed":
            self.profiler.finished(job)
            if self.loop:
                self.learner.curve(job.job_type, self.loop.monitors.top5(job))
        self._wake(job, kind, event)

    def _log(self, job: JobRecord, event: Mapping[str, Any]) -> None:
        public = {k: v for k, v in event.items() if k not in ("before", "after", "step", "sent_at")}
        state = {"job_id": job.raw_id, "state": job.state, "generation": job.generation, "num_gpus": len(job.gpu_ids)}
        self.journal.append({**state, **public})

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
        self.journal.append(
            {
                "type": "gpu", "gpu_id": after.id, "state": after.state,
                "job_id": after.doc.get("job_id"), "held_by": after.doc.get("held_by"),
            }
        )  # fmt: skip
        for job_id in {before.job, before.held_by, after.job, after.held_by} - {None}:
            self.queue.add(str(job_id))

    def _running(self, job: JobRecord, op: Operation | None) -> None:
        beat = self.reports.of(job)
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
            if self.loop:
                self.loop.reshaped_at[job.id] = self.clock.now()
            self.metrics.reshaped(body["direction"], body["gap_s"], body["stages_s"])
        pids = {"sidecar_pid": beat.sidecar_pid, "shim_pid": beat.shim.shim_pid, "trainer_pid": beat.shim.trainer_pid}
        self._log(job, {**body, **pids, "decision_id": op.decision})
        self.learner.overheads(job.job_type, self._profiles(), **stages.learned(op, beat, marks))

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
        self.learner.overheads(job.job_type, self._profiles(), k8s_term=stages.span(removing, self.clock.now()))

    def _profiles(self) -> Profiles:
        return self.loop.profiles if self.loop else Profiles()

    def _wake(self, job: JobRecord, kind: str, event: Mapping[str, Any]) -> None:
        self.queue.add(job.id)
        for record in (job, event.get("before")):
            if isinstance(record, JobRecord) and record.operation and record.operation.peer:
                self.queue.add(record.operation.peer)
        if kind in WAKES_THE_LOOP:
            self.wake.set()
        if kind == "closed":
            self._marks.pop(job.id, None)
            self.reports.forget(job.id)
            self.profiler.forget(job)
