"""Lists jobs that have ended a page at a time, newest first. Called by `coordinator/api/page_reads.py`."""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

from coordinator.events.event_log import KEPT, EventLog
from coordinator.model.records import JobRecord, number
from coordinator.ports import Clock, Store

LASTS_S = 10.0  # how long the list of names is used while no event tells of another end


class Ended(NamedTuple):
    """Enough of an ended job to find its document."""

    finish_ts: float
    job_id: str
    key: Any


class EndedJobs:
    """Knows names and times of all; of documents it reads those of a page only."""

    def __init__(self, store: Store, event_log: EventLog, clock: Clock) -> None:
        self._store, self._event_log, self._clock = store, event_log, clock
        self._lock = threading.Lock()
        self._known: list[Ended] = []
        self._seen, self._read_at = 0, -LASTS_S  # the last event, and the time, when they were listed

    def page(self, named: str, offset: int, limit: int) -> tuple[list[JobRecord], int]:
        """Jobs whose id holds `named`, and the number of all of those."""
        with self._lock:
            if self._outdated():
                self._list()
            fitting = [ended for ended in self._known if named in ended.job_id]
        docs = [self._store.get("jobs", ended.key) for ended in fitting[offset : offset + limit]]
        return [JobRecord(doc) for doc in docs if doc is not None], len(fitting)

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
        rows = self._store.scan("jobs", ("job_id", "closed", "finish_ts"))
        closed = [row for row in rows if row.get("closed") is True]
        found = [Ended(number(r.get("finish_ts")) or 0.0, str(r.get("job_id", r["_id"])), r["_id"]) for r in closed]
        self._known = sorted(found, key=lambda ended: ended[:2], reverse=True)
