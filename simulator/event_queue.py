"""Provides the event queue and clock of the simulator.

Promises: events run by time, events of the same time in the order in which they were added, under any hash seed. Called
by `cluster.py` and its parts. Imports no other module of this project.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count


class Event:
    """A future event; `called_off` cancels it."""

    __slots__ = ("action", "called_off")

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.called_off = False


class EventQueue:
    """Events by time in seconds; `now` never decreases."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Event]] = []
        self._order = count()

    def at(self, time: float, action: Callable[[], None]) -> Event:
        """Add an event at a time. Raises ValueError for a time in the past, which is a bug of the caller."""
        if not time >= self.now:
            raise ValueError(f"an event at {time} s was asked for at {self.now} s, when that had passed")
        event = Event(action)
        heapq.heappush(self._heap, (time, next(self._order), event))
        return event

    def after(self, seconds: float, action: Callable[[], None]) -> Event:
        return self.at(self.now + seconds, action)

    def moments(self) -> Iterator[float]:
        """Run the events; yield each time once all its events have run, including those added meanwhile."""
        while self._heap:
            moment, _, event = self._heap[0]
            if event.called_off:
                heapq.heappop(self._heap)
                continue
            self.now = moment
            while self._heap and self._heap[0][0] == moment:
                event = heapq.heappop(self._heap)[2]
                if not event.called_off:
                    event.action()
            yield moment
