"""A work queue of keys, as in Kubernetes controllers: deduplicated, one consumer per key, with delays and backoff.

`add` while a key is being processed requeues it afterwards, so no change is missed. Threads take keys with `next` and
return them with `done`. Delays use a clock that never jumps.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable

BACKOFF_S, BACKOFF_MAX_S = 0.2, 10.0


class WorkQueue:
    """Keys to process. All methods may be called from any thread."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, fresh_s: Callable[[str], float] = lambda key: 0.0
    ) -> None:
        """`fresh_s`: for how many seconds the newest report on a key still counts; 0 or less: it is silent."""
        self._now, self._fresh_s = now, fresh_s
        self._changed = threading.Condition()
        self._ready: dict[str, None] = {}  # ordered set
        self._working: set[str] = set()
        self._requeued: set[str] = set()
        self._later: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}  # the one entry of `_later` that counts for each key
        self._watched: dict[str, float] = {}  # until when at most that entry is put off, of keys that are only watched
        self._failures: dict[str, int] = {}
        self._closed = False

    def add(self, key: str, delay_s: float = 0.0) -> None:
        """Process `key` soon, or in `delay_s` seconds at the latest."""
        with self._changed:
            if delay_s > 0:
                self._add_later(self._now() + delay_s, key)
            elif key in self._working:
                self._requeued.add(key)
            else:
                self._ready[key] = None
            self._changed.notify()

    def watch(self, key: str, delay_s: float, at_latest_s: float) -> None:
        """Process `key` in `delay_s` seconds, or later while something fresh is known of it, but in `at_latest_s`."""
        with self._changed:
            now = self._now()
            if now + delay_s < self._due.get(key, math.inf):
                self._add_later(now + delay_s, key)
                self._watched[key] = now + at_latest_s
            self._changed.notify()

    def _add_later(self, due: float, key: str) -> None:
        """Keep only the earliest delay of a key; else each delayed call would start a chain of its own."""
        self._watched.pop(key, None)
        if due < self._due.get(key, math.inf):
            self._put_later(due, key)

    def _put_later(self, due: float, key: str) -> None:
        self._due[key] = due
        heapq.heappush(self._later, (due, key))

    def retry(self, key: str) -> float:
        """Process `key` again after a pause that doubles with each failure in a row; returns the pause."""
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay: float = min(BACKOFF_S * 2.0 ** (failures - 1), BACKOFF_MAX_S)
        self.add(key, delay)
        return delay

    def forgive(self, key: str) -> None:
        """Reset the backoff of a key after a success."""
        with self._changed:
            self._failures.pop(key, None)

    def next(self) -> str | None:
        """The next key, waiting for one; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                key, wait = self._take()
                if key is not None:
                    return key
                self._changed.wait(wait)
            return None

    def take_key(self) -> str | None:
        """The next key, or None if there is none now."""
        with self._changed:
            return None if self._closed else self._take()[0]

    def _take(self) -> tuple[str | None, float | None]:
        """The next key, or None and seconds until one is due."""
        wait = self._promote()
        if not self._ready:
            return None, wait
        key = next(iter(self._ready))
        del self._ready[key]
        self._working.add(key)
        return key, None

    def done(self, key: str) -> None:
        """The consumer of `key` has finished with it."""
        with self._changed:
            self._working.discard(key)
            if key in self._requeued:
                self._requeued.discard(key)
                self._ready[key] = None
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _promote(self) -> float | None:
        """Move due keys to the ready ones; seconds until the next is due."""
        now = self._now()
        while self._later and self._later[0][0] <= now:
            due, key = heapq.heappop(self._later)
            if self._due.get(key) != due:
                continue
            del self._due[key]
            if (put_off_s := self._put_off_s(key, now)) > 0:
                self._put_later(now + put_off_s, key)
                continue
            self._watched.pop(key, None)
            if key in self._working:
                self._requeued.add(key)
            else:
                self._ready[key] = None
        return self._later[0][0] - now if self._later else None

    def _put_off_s(self, key: str, now: float) -> float:
        """For how long a key that is due is put off, as it is only watched and something fresh is known of it."""
        until = self._watched.get(key)
        return 0.0 if until is None else min(self._fresh_s(key), until - now)
