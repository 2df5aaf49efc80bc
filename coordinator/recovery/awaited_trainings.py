"""Holds decisions back while trainings run of which the store, emptied, had no record, until they have reported.

Deciding before would give away GPUs in use, and count a training twice. One that is silent for as long as its lease has
saved and stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from coordinator.ports import Clock, Store
from coordinator.recovery.lost_trainings import lost_trainings, take_lost_trainings
from coordinator.stores.cache import Cache
from coordinator.telemetry.reports import Reports

log = logging.getLogger(__name__)

EMPTY = "The store is empty: nothing is decided until a launcher has looked what runs."


class AwaitedTrainings:
    """Used by the thread of the decision loop; others read `waits`."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        reports: Reports,
        clock: Clock,
        lease_s: float,
        launcher_tells: bool,
        read_reports: Callable[[], None],
        recover: Callable[[], None],
    ) -> None:
        """`launcher_tells`: whether a launcher on a cluster tells of which trainings the store has lost the records."""
        self._store = store
        self._cache = cache
        self._reports = reports
        self._clock = clock
        self._lease_s = lease_s
        self.launcher_tells = launcher_tells
        self._read_reports = read_reports
        self._recover = recover
        self._waits_since: float | None = None

    @property
    def waits(self) -> bool:
        """True while nothing is decided, because what runs is not known."""
        return self._waits_since is not None

    def all_are_known(self) -> bool:
        """Return whether decisions may be made: what was lost has reported, and the store is in line with it."""
        if not self.launcher_tells:
            return True
        lost = lost_trainings(self._store)
        if lost is None and not self._store.list("jobs", {"closed": False}):
            self._read_reports()
            return self._wait(EMPTY)
        if not lost:
            self._waits_since = None
            return True
        self._read_reports()
        now = self._clock.now()
        if self._any_is_silent(lost) and now - (self._waits_since or now) < self._lease_s:
            return self._wait(f"The store had lost {len(lost)} trainings: nothing is decided until they have reported.")
        self._recover()
        take_lost_trainings(self._store, lost)
        self._waits_since = None
        return True

    def _wait(self, why: str) -> bool:
        if self._waits_since is None:
            log.warning("%s", why)
            self._waits_since = self._clock.now()
        return False

    def _any_is_silent(self, names: Sequence[str]) -> bool:
        """Return whether a job has not reported, or trains on a GPU that its node has not reported yet."""
        gpus = self._cache.gpus()
        beats = [self._reports.newest_of_job(job) for name in names if (job := self._cache.job(name)) is not None]
        return any(beat is None or not gpus.keys() >= set(beat.shim.gpu_ids) for beat in beats)
