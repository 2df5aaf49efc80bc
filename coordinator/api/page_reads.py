"""Reads what the dashboard's pages show: a page of jobs at a time, the fleet, what is known of one job's course.

Open jobs and GPUs come from memory. Called by `coordinator.api.api_service.ApiService`, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from adaptive_scheduler.expected_times import ExpectedTimes
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.ports import Store
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache

View = dict[str, Any]
Expected = tuple[Mapping[str, ExpectedTimes], float]

GROUPS = ("running", "waiting", "ended", "refused")


class PageReads:
    """Thread-safe."""

    def __init__(
        self, store: Store, cache: Cache, loop: DecisionLoop, view: Callable[[JobRecord, Expected], View]
    ) -> None:
        """`view` makes what callers see of a job."""
        self._store, self._cache, self._loop, self._view = store, cache, loop, view

    def jobs(self, group: str, named: str, offset: int, limit: int) -> View:
        """`jobs`: views of at most `limit` jobs of a group whose id holds `named`; `total` and `counts`.

        Running and waiting ones stand in the order of their submission, ended ones newest first.
        """
        if group not in GROUPS:
            raise Rejected(f"There is no group {group!r} of jobs; there are: {', '.join(GROUPS)}.", 404)
        open_ = self._cache.jobs().values()
        waiting = [job for job in open_ if job.state == s.SUBMITTED]
        running = [job for job in open_ if job.state != s.SUBMITTED]
        if group in ("running", "waiting"):
            found = sorted(running if group == "running" else waiting, key=lambda job: (job.submit_ts, job.id))
        else:
            found = self._ended() if group == "ended" else self._refused()
        fitting = [job for job in found if named in job.id]
        expected = self._loop.expected_times() if limit and group in ("running", "waiting") else ({}, 0.0)
        return {
            "jobs": [self._view(job, expected) for job in fitting[offset : offset + limit]],
            "total": len(fitting),
            "counts": {"running": len(running), "waiting": len(waiting)},
        }

    def states(self, job_ids: Iterable[str]) -> dict[str, str]:
        """States of these jobs, as far as they are open."""
        known = self._cache.jobs()
        return {job_id: known[job_id].state for job_id in job_ids if job_id in known}

    def _ended(self) -> list[JobRecord]:
        ended = [JobRecord(doc) for doc in self._store.list("jobs", {"closed": True})]
        return sorted(ended, key=lambda job: (job.finish_ts, job.id), reverse=True)

    def _refused(self) -> list[JobRecord]:
        """Documents that intake has not accepted, and jobs that are set aside."""
        new = [JobRecord(doc) for doc in self._store.list("jobs", {"closed": None})]
        return [*new, *self._cache.set_aside().values()]
