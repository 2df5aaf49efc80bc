"""Tells which jobs have changed since the decision loop looked last: by what was heard, or by their records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import compress
from operator import is_not
from typing import Any

from coordinator.model.records import JobRecord


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys in `now` whose value is another object than before. Neither map may change any more."""
    if before is now:
        return []
    old, new = list(before), list(now)
    if new[: len(old)] == old:  # what comes is mostly put behind the rest: values side by side need no look-ups
        return [*compress(new, map(is_not, now.values(), before.values())), *new[len(old) :]]
    return list(compress(new, map(is_not, now.values(), map(before.get, new))))


class Picked:
    """The jobs for which a test of their record alone holds, of one map after another: only changed ones are tested."""

    def __init__(self, test: Callable[[JobRecord], bool]) -> None:
        self._test = test
        self._jobs: Mapping[str, JobRecord] = {}
        self._picked: dict[str, JobRecord] = {}

    def from_jobs(self, jobs: Mapping[str, JobRecord]) -> dict[str, JobRecord]:
        """In the order of `jobs`, which may not change any more; nor may the answer."""
        if jobs is self._jobs:
            return self._picked
        new = changed(self._jobs, jobs)
        picked = {job_id: jobs[job_id] for job_id in self._picked if job_id in jobs}
        picked |= {job_id: jobs[job_id] for job_id in new}
        for job_id in new:
            if not self._test(jobs[job_id]):
                del picked[job_id]
        self._jobs, self._picked = jobs, {job_id: jobs[job_id] for job_id in filter(picked.__contains__, jobs)}
        return self._picked


class ChangedJobs:
    """Ids of jobs of which something new was heard or measured. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[str] = set()

    def add(self, *job_ids: str) -> None:
        """Call it after the change: whoever has taken the ids before would not see it."""
        with self._lock:
            self._ids.update(job_ids)

    def take_ids(self) -> set[str]:
        """All ids since the last call."""
        with self._lock:
            ids, self._ids = self._ids, set()
            return ids
