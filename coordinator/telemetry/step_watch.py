"""Notices trainings that live and make no step any more: in a deadlock, stopped by a signal, waiting for a file system.

Also those that were asked to stop and do nothing: no step, no CPU, nothing read or written, no checkpoint.

Promises: a pause that is not three times as long as the longest one after which the job went on is no standstill, be it
for an evaluation or a checkpoint, nor is one of fewer than twenty of its usual steps, nor silence of its sidecar, nor
the life of a job that never told how fast it is. Called by `Telemetry` with each report, by the loop for what to write.
Thread-safe; times are the coordinator's own.
"""

from __future__ import annotations

import threading
from collections.abc import Container
from dataclasses import dataclass

from coordinator.model.records import Doc, JobRecord, Moment, number
from coordinator.model.tables import JobChanges
from sidecar.protocol import Checkpoint, Heartbeat

USUAL_STEPS = 20  # of the job's usual ones: fewer are no standstill
LONGEST_PAUSES = 3.0  # of the longest pause that the job has shown
SILENT_BEATS = 4  # intervals without a report after which nobody knows what a job did meanwhile
IDLE_CORES = 0.05  # a process that waits may look around now and then
WORTH_KEEPING = 1.25  # by how much a pause must exceed the one that is stored

_Step = tuple[float | None, float | None, int]  # when the trainer was spawned, its newest step, iterations done
_Saved = tuple[Checkpoint | None, Checkpoint | None, float | None]  # on the disk, in memory, when


@dataclass
class _Watched:
    newest: _Step
    since: float  # when the newest step was heard of
    heard: float  # when the newest report came
    longest_s: float  # pause after which it went on
    generation: int = 0
    trains: bool = False
    stops: bool = False  # was asked to stop, and lives
    saved: _Saved | None = None
    usual_s: float | None = None  # for a step


class StepWatch:
    def __init__(self, least_s: float, heartbeat_s: float) -> None:
        """`least_s`: shorter pauses are no standstill, however fast the job is."""
        self._least_s, self._silent_s = least_s, SILENT_BEATS * heartbeat_s
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}

    def begin(self) -> None:
        """Forget what was heard before this coordinator acted."""
        with self._lock:
            self._watched.clear()

    def forget_job(self, job_id: str) -> None:
        with self._lock:
            self._watched.pop(job_id, None)

    def keep_only(self, jobs: Container[str]) -> None:
        """Forget all jobs but these."""
        with self._lock:
            for job_id in [job_id for job_id in self._watched if job_id not in jobs]:
                del self._watched[job_id]

    def heard(self, job: JobRecord, beat: Heartbeat, at: Moment) -> None:
        """Take a report. `at`: when it came."""
        progress = beat.progress
        now = at.now
        newest = (beat.shim.spawn_at, progress.last_step_at, progress.iterations)
        with self._lock:
            watched = self._watched.get(job.id)
            if watched is None:
                longest_s = number(job.doc.get("pause_s")) or 0.0
                watched = self._watched[job.id] = _Watched(newest, now - job.stood_s(at), now, longest_s)
                watched.stops = bool(job.idle_in_stop)
                watched.saved = _saved_so_far(beat)
            silent, trains = now - watched.heard > self._silent_s, beat.shim.trainer == "running"
            idle = (
                beat.shim.trainer == "stopping"
                and watched.stops
                and not _uses_machine(beat)
                and _saved_so_far(beat) == watched.saved
            )
            if newest != watched.newest:
                if watched.trains and not silent:
                    watched.longest_s = max(watched.longest_s, now - watched.since)
                watched.newest, watched.since = newest, now
            elif silent or not (trains or idle):
                watched.since = now
            watched.heard, watched.trains, watched.generation = now, trains, beat.shim.generation
            watched.stops = beat.shim.trainer == "stopping"
            watched.saved = _saved_so_far(beat)
            watched.usual_s = progress.seconds_per_iteration or watched.usual_s

    def changes(self, job: JobRecord, at: Moment) -> JobChanges:
        """Fields to write if it is known now that the job stands still, goes on, or may pause for longer."""
        with self._lock:
            watched = self._watched.get(job.id)
            if watched is None:
                return {}
            found: JobChanges = {}
            stood_s, known = watched.heard - watched.since, job.doc.get("stalled")
            since = at.wall - stood_s
            told: Doc = {"since": since, "mark": at.mark(since), "usual_s": watched.usual_s or 0.0}
            if watched.trains and watched.usual_s is not None and stood_s > self._limit_s(watched, watched.usual_s):
                if not job.stalled:
                    found["stalled"] = {**told, "generation": watched.generation}
            elif watched.stops and stood_s > self._least_s:
                if not job.idle_in_stop:
                    found["stalled"] = {**told, "generation": job.generation, "stopping": True}
            elif known is not None:
                found["stalled"] = None
            if watched.longest_s > max(self._least_s / 4, WORTH_KEEPING * (number(job.doc.get("pause_s")) or 0.0)):
                found["pause_s"] = watched.longest_s
        return found

    def _limit_s(self, watched: _Watched, usual_s: float) -> float:
        return max(self._least_s, USUAL_STEPS * usual_s, LONGEST_PAUSES * watched.longest_s)


def _saved_so_far(beat: Heartbeat) -> _Saved:
    return beat.checkpoint, beat.shim.in_memory, beat.checkpoint_at


def _uses_machine(beat: Heartbeat) -> bool:
    """True if a training uses CPU or a disk, or if that is not known."""
    use = beat.usage
    return use.cpu_cores is None or use.cpu_cores > IDLE_CORES or bool(use.block_io)
