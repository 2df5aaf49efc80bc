"""What happened, in order: events for people and programs, written to the store in batches.

Each event has a number that grows by one. The newest are kept in memory for those who listen; older
ones are read from the store. A crash may lose the events of the last fraction of a second, never
state: state is written by compare-and-set before anything is told here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from coordinator.ports import Clock, Doc, Store

KEPT = 5_000  # events in memory
UNWRITTEN_MAX = 20_000  # events kept while the store is down; the oldest go first


class Journal:
    """Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._last = store.last_event()
        self._newest: deque[Doc] = deque(maxlen=KEPT)
        self._unwritten: deque[Doc] = deque(maxlen=UNWRITTEN_MAX)
        self._listeners: list[Callable[[], None]] = []

    def append(self, event: Mapping[str, Any]) -> int:
        """Number an event, tell the listeners, keep it for the next `flush`."""
        with self._lock:
            self._last += 1
            doc = {"_id": self._last, "at": self._clock.wall(), **event}
            self._newest.append(doc)
            self._unwritten.append(doc)
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
        return self._last

    def flush(self) -> None:
        """Write what is new, in one round trip. What could not be written stays for the next time."""
        with self._lock:
            batch = list(self._unwritten)
        if not batch:
            return
        self._store.append_events(batch)
        with self._lock:
            for _ in batch:
                if self._unwritten and self._unwritten[0]["_id"] <= batch[-1]["_id"]:
                    self._unwritten.popleft()

    def after(self, seq: int, limit: int) -> list[Doc]:
        """Events with a number above `seq`, oldest first."""
        with self._lock:
            newest = list(self._newest)
        if newest and newest[0]["_id"] <= seq + 1:
            return [e for e in newest if e["_id"] > seq][:limit]
        stored = list(self._store.events_after(seq, limit))
        last = stored[-1]["_id"] if stored else seq
        return (stored + [e for e in newest if e["_id"] > last])[:limit]

    def last(self) -> int:
        return self._last

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, whenever something was appended; returns how to stop that."""
        with self._lock:
            self._listeners.append(callback)

        def stop() -> None:
            with self._lock:
                if callback in self._listeners:
                    self._listeners.remove(callback)

        return stop
