"""Lists jobs for callers, shows one of them, and how it trained.

Open jobs come from memory; of ended ones only the documents that are shown are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from coordinator.api import views
from coordinator.api.access import Access, UserService
from coordinator.api.decided import Decided
from coordinator.api.ended_jobs import EndedJobs
from coordinator.api.job_views import JobViews
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.records import JobRecord, number
from coordinator.ports import Clock, Store
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache
from coordinator.telemetry.progress_tracker import ProgressTracker
from coordinator.telemetry.training_curve import KeptCurve

View = dict[str, Any]

GROUPS = ("running", "waiting", "ended", "refused")


class JobReads(UserService):
    """Thread-safe."""

    def __init__(
        self,
        access: Access,
        store: Store,
        cache: Cache,
        clock: Clock,
        loop: DecisionLoop,
        progress: ProgressTracker,
        job_views: JobViews,
        ended: EndedJobs,
        decided: Decided,
    ) -> None:
        super().__init__(access)
        self._store = store
        self._cache = cache
        self._clock = clock
        self._loop = loop
        self._progress = progress
        self._job_views = job_views
        self._ended = ended
        self._decided = decided

    def list_jobs(self, include_ended: bool, within_s: float = 0.0) -> list[View]:
        """List jobs, oldest first: with all that have ended, or with those that did in the last `within_s` seconds."""
        records = {str(doc["_id"]): JobRecord(doc) for doc in self._store.list("jobs", {"closed": None})}
        records |= {str(j.key): j for j in (*self._cache.jobs().values(), *self._cache.set_aside().values())}
        since = 0.0 if include_ended else self._clock.wall() - within_s if within_s else math.inf
        for job in self._ended.ended_since(since):
            records.setdefault(str(job.key), job)
        ordered = sorted(records.values(), key=lambda j: (j.submit_ts, j.id))
        shown = [job for job in ordered if (job.state not in s.ENDED or job.finish_ts >= since) and self._sees(job)]
        expected = self._loop.expected_times()
        return [self._job_views.view(job, self.access, expected) for job in shown]

    def job(self, job_id: str) -> View:
        """Return one job, with the reason why it waits or has its GPUs; `Rejected` with status 404 if there is none."""
        job = self.access.find_seen(job_id)
        if self.access.hides(job):
            return self._job_views.view(job, self.access)
        why, change = (
            self._loop.reasons.reason_of_job(job.id) if job.state == s.SUBMITTED and job.accepted else ("", None)
        )
        expected = self._loop.expected_times()
        view = self._job_views.view(job, self.access, expected) | views.starts_if(change)
        message = self._loop.pool.reasons.get(job.id) or why or view["message"]
        return self.access.without_names({**view, "message": message, **self._decided.of_job(job)})

    def jobs_page(self, group: str, named: str, offset: int, limit: int) -> View:
        """Return `jobs`: at most `limit` of a group whose id or owner holds `named`; `total` and `counts`.

        Running and waiting ones stand in the order of their submission, ended ones newest first.
        """
        if group not in GROUPS:
            raise Rejected(f"There is no group {group!r} of jobs; there are: {', '.join(GROUPS)}.", 404)
        open_jobs = self._cache.jobs().values()
        waiting = [job for job in open_jobs if job.state == s.SUBMITTED]
        running = [job for job in open_jobs if job.state != s.SUBMITTED]

        def fits(job: JobRecord) -> bool:
            is_named = named in job.id or (self.access.sees_all and named in str(job.doc.get("owner") or ""))
            return is_named and self._sees(job)

        if group == "ended":
            shown, total = self._ended.page(fits, offset, limit)
        else:
            found = self._refused() if group == "refused" else waiting if group == "waiting" else running
            fitting = sorted(filter(fits, found), key=lambda job: (job.submit_ts, job.id))
            shown = fitting[offset : offset + limit]
            total = len(fitting)
        expected = self._loop.expected_times() if shown and group in ("running", "waiting") else ({}, 0.0)
        return {
            "jobs": [self._job_views.view(job, self.access, expected) for job in shown],
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
        job = self.access.find_seen(job_id)
        course = KeptCurve() if self.access.hides(job) else self._progress.course(job)
        return course.shown(job.raw_id)

    def _sees(self, job: JobRecord) -> bool:
        return self.access.sees(job)

    def _refused(self) -> list[JobRecord]:
        """Return documents that intake has not accepted, and jobs that are set aside."""
        new = [JobRecord(doc) for doc in self._store.list("jobs", {"closed": None})]
        return [*new, *self._cache.set_aside().values()]
