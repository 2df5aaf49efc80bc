"""Numbers events and writes them to the store in batches.

Numbers grow by one. The newest events are kept in memory for the event streams; older ones are read from the store. A
crash may lose the events of the last two seconds, never state: state is written by compare-and-set before
its event is appended.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from coordinator.errors import Conflict
from coordinator.model.tables import EventRow, sound
from coordinator.ports import Clock, Doc, Store

KEPT = 5_000  # events in memory
UNWRITTEN_MAX = 20_000  # events kept while the store is down; the oldest are dropped first


class EventLog:
    """Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._me = secrets.token_hex(4)
        self._last = store.last_event()
        self._newest: deque[Doc] = deque(maxlen=KEPT)
        self._unwritten: deque[Doc] = deque(maxlen=UNWRITTEN_MAX)
        self._unwritten_since = 0.0  # when the first of them came
        self._listeners: list[Callable[[], None]] = []

    def append(self, event: Mapping[str, Any]) -> int:
        """Number an event, call the listeners, keep it for the next `flush`; returns the number."""
        with self._lock:
            self._last = number = self._last + 1
            doc = {"_id": number, "at": self._clock.wall(), "by": self._me, **event}
            self._newest.append(doc)
            if not self._unwritten:
                self._unwritten_since = self._clock.now()
            self._unwritten.append(doc)
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
        return number

    def flush_once_old(self, age_s: float) -> float:
        """`flush` if the first new event is so old; returns the seconds after which to call again.

        Counted from the first one, so that the events of one reshape mostly go out in one round trip.
        """
        with self._lock:
            rest_s = age_s - (self._clock.now() - self._unwritten_since) if self._unwritten else age_s
        if rest_s > 0:
            return rest_s
        self.flush()
        return age_s

    def flush(self) -> None:
        """Write the new events in one round trip; what could not be written stays for the next call."""
        with self._lock:
            batch = list(self._unwritten)
        if not batch:
            return
        try:
            self._store.append_events(batch)
        except Conflict:
            self._settle(batch)
        else:
            self._written({e["_id"] for e in batch})

    def _settle(self, batch: list[Doc]) -> None:
        """Renumber: some numbers are taken, by this batch if its reply was lost, or by another coordinator."""
        stored = {e["_id"]: e for e in self._store.events_after(batch[0]["_id"] - 1, len(batch))}
        last = self._store.last_event()
        self._written({e["_id"] for e in batch if stored.get(e["_id"], {}).get("by") == self._me})
        with self._lock:
            first = max(self._last, last) + 1
            renumbered = [{**event, "_id": number} for number, event in enumerate(self._unwritten, first)]
            self._last = first + len(renumbered) - 1
            self._unwritten.clear()
            self._unwritten.extend(renumbered)
            self._newest = deque(renumbered, maxlen=KEPT)  # events of others between these are only in the store

    def _written(self, numbers: set[int]) -> None:
        with self._lock:
            left = [e for e in self._unwritten if e["_id"] not in numbers]
            self._unwritten.clear()
            self._unwritten.extend(left)
            self._unwritten_since = self._clock.now()

    def after(self, seq: int, limit: int) -> list[Doc]:
        """At most `limit` events with a number above `seq`, oldest first."""
        with self._lock:
            newest = list(self._newest)
        if newest and newest[0]["_id"] <= seq + 1:
            return [e for e in newest if e["_id"] > seq][:limit]
        stored = self._stored(seq, limit)
        last = stored[-1]["_id"] if stored else seq
        return (stored + [e for e in newest if e["_id"] > last])[:limit]

    def events_since(self, ts: float) -> list[Doc]:
        """All kept events from `ts` on, oldest first, and some from before: pages are read from the newest one back."""
        pages: list[list[Doc]] = []
        first = self.oldest_number()
        high = self.last()
        while high >= first:
            low = max(first - 1, high - KEPT)
            pages.append([event for event in self.after(low, high - low) if event["_id"] <= high])
            if pages[-1] and all(event.get("at", 0.0) < ts for event in pages[-1]):
                break
            high = low
        return [event for page in reversed(pages) for event in page]

    def oldest_number(self) -> int:
        """The number of the oldest event that is kept; one more than the last where none is."""
        kept = self.after(0, 1)
        return int(kept[0]["_id"]) if kept else self._last + 1

    def _stored(self, seq: int, limit: int) -> list[Doc]:
        """Events of the store, without documents that are none."""
        while page := list(self._store.events_after(seq, limit)):
            if found := sound(page, EventRow):
                return found
            seq = page[-1]["_id"]
        return []

    def last(self) -> int:
        return self._last

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, after each append; returns the function that ends this."""
        with self._lock:
            self._listeners.append(callback)

        def stop() -> None:
            with self._lock:
                if callback in self._listeners:
                    self._listeners.remove(callback)

        return stop
