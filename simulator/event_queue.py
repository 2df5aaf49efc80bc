"""What is still to happen in a simulated cluster, and when; the only clock of the simulator.

Promises that events come in the order of their times, those of one time in the order they were put
down, whatever the hash seed. Called by `world.py`. Imports nothing of ours.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count


class Event:
    """One thing that will happen unless it is called off."""

    __slots__ = ("action", "called_off")

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.called_off = False


class EventQueue:
    """Times are seconds; `now` only ever grows."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Event]] = []
        self._order = count()

    def at(self, time: float, action: Callable[[], None]) -> Event:
        """Raises ValueError for a time that has passed: a bug of the caller."""
        if not time >= self.now:
            raise ValueError(f"an event at {time} s was asked for at {self.now} s, when that had passed")
        event = Event(action)
        heapq.heappush(self._heap, (time, next(self._order), event))
        return event

    def after(self, seconds: float, action: Callable[[], None]) -> Event:
        return self.at(self.now + seconds, action)

    def moments(self) -> Iterator[float]:
        """Go through time: everything of one moment happens, also what it sets off at once, then it is yielded."""
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
