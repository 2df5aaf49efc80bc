"""Reads what the dashboard's pages show: a page of jobs at a time, the fleet, what is known of one job's course.

Open jobs and GPUs come from memory, the latest decisions by their ids in the newest events.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from coordinator.api.decided import Decided
from coordinator.api.ended_jobs import EndedJobs
from coordinator.api.operator_requests import OperatorRequests
from coordinator.caller import Caller
from coordinator.errors import Rejected
from coordinator.events.event_log import KEPT, EventLog
from coordinator.expected_times import ExpectedTimes
from coordinator.forecasts.forecaster import Forecaster
from coordinator.model import states as s
from coordinator.model.records import JobRecord, number
from coordinator.ports import Clock, Platform, Store
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache
from coordinator.telemetry.ingest import Telemetry
from coordinator.telemetry.training_curve import KeptCurve

View = dict[str, Any]
Expected = tuple[Mapping[str, ExpectedTimes], float]

TAIL, MOST_TAILS = 32 * 1024, 100  # bytes that are shown; jobs of which they are kept
GROUPS = ("running", "waiting", "ended", "refused")


class PageReads:
    """The part of `coordinator.api.api_service.ApiService` that pages need. Thread-safe."""

    _store: Store
    _cache: Cache
    _loop: DecisionLoop
    _event_log: EventLog
    _telemetry: Telemetry
    _platform: Platform
    _clock: Clock
    _decided: Decided
    _ended: EndedJobs
    _operator: OperatorRequests
    _forecaster: Forecaster
    _caller: Caller | None = None  # of a shared machine: whose rights hold

    def __init__(self) -> None:
        self._tails_lock = threading.Lock()
        self._tails: dict[tuple[str, str], tuple[int, bytes]] = {}  # offset and bytes before it, by job

    def _view(self, job: JobRecord, expected: Expected = ({}, 0.0)) -> View:
        raise NotImplementedError

    def is_own(self, job_id: str, at: float = math.inf) -> bool:
        """Return whether the newest job of that name is the caller's own, and had been submitted by then."""
        job = self._cache.find(job_id)
        return job is not None and not self._hides(job) and job.submit_ts <= at

    def name_for_caller(self, word: str) -> str:
        """Return a word of a sentence, or others where it names a job or a user that the caller may not know."""
        job = self._cache.job(word)
        if job is not None:
            return word if self._sees(job) else "another user's job"
        who = self._loop.accounts.standings
        is_user = who is not None and any(owner.user == word for owner in who.owners)
        is_own = self._caller is None or self._caller.name == word
        return "another user" if is_user and not is_own else word

    def _sees(self, job: JobRecord) -> bool:
        """Return whether the caller may know that there is this job."""
        return self._caller is None or self._caller.sees(job)

    def _hides(self, job: JobRecord) -> bool:
        """Return whether the caller may know no more of this job than its name, state and counts."""
        return self._caller is not None and not self._caller.may_change(job)

    def jobs_page(self, group: str, named: str, offset: int, limit: int) -> View:
        """`jobs`: views of at most `limit` jobs of a group whose id holds `named`; `total` and `counts`.

        Running and waiting ones stand in the order of their submission, ended ones newest first.
        """
        if group not in GROUPS:
            raise Rejected(f"There is no group {group!r} of jobs; there are: {', '.join(GROUPS)}.", 404)
        open_ = self._cache.jobs().values()
        waiting = [job for job in open_ if job.state == s.SUBMITTED]
        running = [job for job in open_ if job.state != s.SUBMITTED]
        if group == "ended":
            shown, total = self._ended.page(named, offset, limit)
            shown = list(filter(self._sees, shown))
        else:
            found = self._refused() if group == "refused" else waiting if group == "waiting" else running
            seen = (job for job in found if named in job.id and self._sees(job))
            fitting = sorted(seen, key=lambda job: (job.submit_ts, job.id))
            shown, total = fitting[offset : offset + limit], len(fitting)
        expected = self._loop.expected_times() if shown and group in ("running", "waiting") else ({}, 0.0)
        return {
            "jobs": [self._view(job, expected) for job in shown],
            "total": total,
            "counts": {"running": len(running), "waiting": len(waiting)},
        }

    def open_jobs(self, job_ids: Iterable[str]) -> dict[str, View]:
        """Return `state`, `owner` and `start_ts` of those of these jobs that are open."""
        known = self._cache.jobs()
        found = {job_id: known[job_id] for job_id in job_ids if job_id in known and self._sees(known[job_id])}
        return {
            job_id: {"state": job.state, "owner": job.doc.get("owner"), "start_ts": number(job.doc.get("start_ts"))}
            for job_id, job in found.items()
        }

    def curve(self, job_id: str) -> View:
        """Return how a job trained: its value and its speed by iterations, and its GPU counts."""
        job = self._operator.find(job_id)
        if not self._sees(job):
            raise self._operator.missing(job_id)
        course = KeptCurve() if self._hides(job) else self._telemetry.progress.course(job)
        return course.shown(job.raw_id)

    def coming(self) -> list[tuple[str, str, float, float]]:
        """Return which job is predicted to hold which GPU, from when until when."""
        return self._forecaster.coming()

    def wall(self) -> float:
        return self._clock.wall()

    def history(self) -> list[View]:
        """The newest events, oldest first."""
        return self._event_log.after(max(0, self._event_log.last() - KEPT), KEPT)

    def decided(self, offset: int, limit: int) -> tuple[list[View], bool]:
        """Decisions that the newest events speak of, newest first, and whether there are more; read by their ids."""
        ids = dict.fromkeys(found for event in reversed(self.history()) if (found := _decision_of(event)))
        wanted = list(ids)[offset : offset + limit]
        return self._decided.some(wanted), len(ids) > offset + limit

    def log_tail(self, job_id: str) -> bytes:
        """The end of a job's output. However long that is, no more is read of it than is shown."""
        job = self._operator.find_own(job_id)
        with self._tails_lock:
            offset, end = self._tails.pop((job.id, job.uid), (-TAIL, b""))
        piece, after = self._platform.output(job.doc, offset, TAIL)
        if len(piece) >= TAIL and offset >= 0:  # more came than is shown: what lies between is passed over
            piece, after = self._platform.output(job.doc, -TAIL, TAIL)
            end = b""
        end = ((end if after >= offset else b"") + piece)[-TAIL:]
        with self._tails_lock:
            self._tails[job.id, job.uid] = after, end
            while len(self._tails) > MOST_TAILS:
                self._tails.pop(next(iter(self._tails)))
        return end

    def _refused(self) -> list[JobRecord]:
        """Documents that intake has not accepted, and jobs that are set aside."""
        new = [JobRecord(doc) for doc in self._store.list("jobs", {"closed": None})]
        return [*new, *self._cache.set_aside().values()]


def _decision_of(event: View) -> str | None:
    """The id of the decision that an event speaks of; of reasons to wait only the last one is kept per job."""
    name = {"waits": "waits", "stays": "stays"}.get(event["type"])
    return f"{event.get('job_id')}-{name}" if name else event.get("decision_id")
