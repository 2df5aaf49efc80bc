"""Remembers what holds each job back: what was told is not told again, and is taken back from a running job in time.

A waiting job that is held keeps its reason until it starts. A running one, such as a job that cannot leave a drained
node, says so in its message until no decision holds it any more. Called by the loop, in its one thread.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress

from adaptive_scheduler.decision import Hold
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.events import HoldWithdrawn, RecordEvent
from coordinator.model.records import JobRecord
from coordinator.ports import Clock
from coordinator.stores.cache import Cache

HOLD_S = 10.0  # least time between two written reasons to wait of a job
NUMBERS = re.compile(r"[0-9][0-9.]*")
TRAINS = "trains"  # the message of a running job of which there is nothing else to say

_Reason = tuple[str, str]  # algorithm or operator's request, and the sentence without its numbers


class Holds:
    def __init__(self, cache: Cache, clock: Clock, record: RecordEvent) -> None:
        self._cache, self._clock, self._record = cache, clock, record
        self._told: dict[str, tuple[_Reason, float]] = {}  # the last reason of each job, and when it was told
        self._training: set[str] | None = None  # running jobs that are held; None: not looked up in the store yet

    def begin(self) -> None:
        """Another coordinator may have acted: nothing is known any more."""
        self._told.clear()
        self._training = None

    def forget_job(self, job_id: str) -> None:
        self._told.pop(job_id, None)
        if self._training is not None:
            self._training.discard(job_id)

    def keep_only(self, jobs: Collection[str]) -> None:
        for job_id in [job_id for job_id in self._told if job_id not in jobs]:
            self.forget_job(job_id)

    def is_news(self, job: JobRecord, hold: Hold, request: str) -> bool:
        """True if this reason was not told yet. One that only changes often is told every `HOLD_S` at most."""
        reason = _reason(hold, request)
        before, at = self._told.get(job.id, (None, -HOLD_S))
        often = self._clock.now() - at < HOLD_S and before is not None and before[0] == reason[0]
        return before != reason and not often

    def told(self, job: JobRecord, hold: Hold, request: str) -> None:
        self._told[job.id] = _reason(hold, request), self._clock.now()
        if job.state == s.RUNNING and self._training is not None:
            self._training.add(job.id)

    def withdraw(self, jobs: Mapping[str, JobRecord], snapshot: ClusterSnapshot, decided: Collection[str]) -> None:
        """Take the reason back from each running job that could be decided about, and no decision is any more."""
        if self._training is None:
            self._training = {job.id for job in jobs.values() if job.state == s.RUNNING and self._was_held(job)}
        for job_id in sorted(self._training.difference(decided)):
            job, shown = jobs.get(job_id), snapshot.job.get(job_id)
            if shown is not None and shown.busy:  # after a restart, until it has reported
                continue
            with suppress(Conflict):  # it has changed, and is looked at again
                if job is not None and job.state == s.RUNNING and job.operation is None:
                    self._record(self._cache.write_job(job, {"message": TRAINS}, "release"), HoldWithdrawn())
                self.forget_job(job_id)

    def _was_held(self, job: JobRecord) -> bool:
        """True if its message is the reason of a stored hold, which an earlier coordinator may have told."""
        said = job.doc.get("message")
        if not said or said == TRAINS:
            return False
        ids = (f"{job.id}-waits", str(job.doc.get("wish_id") or ""))
        rows = [self._cache.store.get("decisions", key) for key in ids if key]
        return any(row is not None and row.get("sentence") == said for row in rows)


def _reason(hold: Hold, request: str) -> _Reason:
    return request or hold.explanation.algorithm, NUMBERS.sub("#", hold.explanation.sentence)
