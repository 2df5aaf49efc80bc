"""Lists jobs that have ended a page at a time, newest first. Called by `coordinator/api/job_reads.py`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from coordinator.events.event_log import KEPT, EventLog
from coordinator.model.records import JobRecord, number
from coordinator.ports import Clock, Doc, Store

LASTS_S = 10.0  # how long the list of names is used while no event tells of another end
MOST_NAMES = 100_000
LISTED = ("job_id", "closed", "finish_ts", "owner", "owner_uid", "namespace", "queue")
"""Fields by which ended jobs are found, and by which it is known who may see them."""


class Ended(NamedTuple):
    """Enough of an ended job to find its document. `job`: with the fields of `LISTED` alone."""

    finish_ts: float
    job: JobRecord


class EndedJobs:
    """Knows names and times of all; of documents it reads those of a page only."""

    def __init__(self, store: Store, event_log: EventLog, clock: Clock) -> None:
        self._store, self._event_log, self._clock = store, event_log, clock
        self._lock = threading.Lock()
        self._known: list[Ended] = []
        self._newest: dict[str, JobRecord] = {}  # by id
        self._named_at: int | None = None  # the last event that `_newest` knows of
        self._seen, self._read_at = 0, -LASTS_S  # the last event, and the time, when they were listed

    def page(self, fits: Callable[[JobRecord], bool], offset: int, limit: int) -> tuple[list[JobRecord], int]:
        """Return jobs that fit, and the number of all of those. `fits`: given the fields of `LISTED` alone."""
        with self._lock:
            if self._outdated():
                self._list()
            known = self._known
        fitting = [ended.job for ended in known if fits(ended.job)]
        docs = [self._store.get("jobs", job.key) for job in fitting[offset : offset + limit]]
        return [JobRecord(doc) for doc in docs if doc is not None], len(fitting)

    def named(self, job_id: str) -> JobRecord | None:
        """Return the fields of `LISTED` of the newest ended job of that id, even if it has been removed since."""
        with self._lock:
            last = self._event_log.last()
            if self._named_at is None or last - self._named_at > KEPT:
                self._list()
            elif last != self._named_at:
                self._learn_names(self._event_log.after(self._named_at, KEPT))
            self._named_at = last
            return self._newest.get(job_id)

    def _learn_names(self, news: Iterable[Mapping[str, Any]]) -> None:
        """Read the jobs alone that have ended since."""
        for name in {str(event.get("job_id")) for event in news if event["type"] == "closed"}:
            for doc in self._store.list("jobs", {"job_id": name, "closed": True}):
                row: Doc = {field: doc[field] for field in ("_id", *LISTED) if field in doc}
                self._newest[name] = JobRecord(row)

    def ended_since(self, ts: float) -> list[JobRecord]:
        """Jobs that have ended at `ts` or later; of no other one the document is read. As the store is now."""
        if ts <= 0.0:
            return [JobRecord(doc) for doc in self._store.list("jobs", {"closed": True})]
        rows = self._store.scan("jobs", ("closed", "finish_ts")) if ts < math.inf else ()
        keys = [row["_id"] for row in rows if row.get("closed") is True and (number(row.get("finish_ts")) or 0.0) >= ts]
        docs = (self._store.get("jobs", key) for key in keys)
        return [JobRecord(doc) for doc in docs if doc is not None]

    def _outdated(self) -> bool:
        news = self._event_log.after(self._seen, KEPT)
        return self._clock.now() - self._read_at >= LASTS_S or any(event["type"] == "closed" for event in news)

    def _list(self) -> None:
        self._seen, self._read_at = self._event_log.last(), self._clock.now()
        rows = self._store.scan("jobs", LISTED)
        closed = [JobRecord(row) for row in rows if row.get("closed") is True]
        found = [Ended(number(job.doc.get("finish_ts")) or 0.0, job) for job in closed]
        self._known = sorted(found, key=lambda ended: (ended.finish_ts, ended.job.id), reverse=True)
        # Words of old decisions name jobs that have been removed since: whose they were is remembered.
        self._newest.update((ended.job.id, ended.job) for ended in reversed(self._known))
        while len(self._newest) > MOST_NAMES:
            self._newest.pop(next(iter(self._newest)))
