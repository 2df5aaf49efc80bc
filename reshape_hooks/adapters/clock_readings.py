"""Lets the time that a script measures from a reading of a clock go on after a stop, without the pause.

    start = time.time()
    for step in state.steps(...):
        if time.time() - start > budget: break

The new start reads the clock anew, so that such a budget, and a rate by it, would begin again at each stop. Promises: a
variable that holds a reading of this process when its loop begins is after a stop as far from now as it was before it;
anything else is left alone. A wall-clock time that lies ahead, as `time.time() + budget`, is such a reading, too; but
not one that the new start finds where it was, as a deadline that was read from a file.
Called by `variables`; the standard library, Python 3.8 and newer.
"""

from __future__ import annotations

import datetime
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshape_hooks import plain
from reshape_hooks.adapters.script_frames import Frame, places

if TYPE_CHECKING:
    from reshape_hooks.adapters.script_frames import Holder, Key, Place

    Saved = Sequence[tuple[Key, Place, str, float, Any]]  # by which clock this value was read, and how long ago

SECOND_NS, MOST_NS = 1_000_000_000, 1 << 63
AHEAD_S = 30 * 86_400.0  # of a time that a script may still be waiting for
DIGITS = 3  # behind the point: a number that has more was not typed


def _age_s() -> float:
    """Return for how long this process has run; 0 where that is not known."""
    started_s = _started_s(os.getpid())
    return 0.0 if started_s is None else plain.boottime() - started_s


@functools.lru_cache(1)
def _started_s(pid: int) -> float | None:
    """Return when this process was started, by the boot clock; None where that is not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _of_floats(clock: Callable[[], float]) -> Callable[[Any], float | None]:
    """Return what tells how many seconds ago `clock` gave this value; None for what it can hardly have given."""
    return lambda value: clock() - value if type(value) is float and round(value, DIGITS) != value else None


def _of_integers(clock: Callable[[], int]) -> Callable[[Any], float | None]:
    return lambda value: (clock() - value) / SECOND_NS if type(value) is int and SECOND_NS < value < MOST_NS else None


def _of_dates(value: Any) -> float | None:
    if type(value) is not datetime.datetime or not value.microsecond:
        return None
    try:
        return time.time() - value.timestamp()
    except (OverflowError, ValueError, OSError):  # a date that no clock here can show
        return None


# By the name of a clock: how long ago a value was read from it. `perf_counter` is the monotonic clock here.
AGO: dict[str, Callable[[Any], float | None]] = {
    "time": _of_floats(lambda: time.time()),
    "monotonic": _of_floats(lambda: time.monotonic()),
    "time_ns": _of_integers(lambda: time.time_ns()),
    "monotonic_ns": _of_integers(lambda: time.monotonic_ns()),
    "datetime": _of_dates,
}
LOOKS_AHEAD = ("time", "datetime")  # of which a script may wait for a time
LARGE = (*LOOKS_AHEAD, "time_ns")  # by whose size alone a value is known as a time


class ClockReadings:
    """The readings in the variables of what holds them, and in attributes of the script's objects that these hold.

    `holders`: returns the functions and objects of the script as they are now. `saved`: what `state` returned.
    """

    def __init__(self, holders: Callable[[], Sequence[Holder]], saved: Saved = ()) -> None:
        self._holders = holders
        self._saved = {(key, place): (clock, ago_s, value) for key, place, clock, ago_s, value in saved}
        self._clocks: dict[tuple[Key, Place], str] = {}
        self._readings: dict[tuple[Key, Place], Any] = {}  # as they were at the last look
        self._met: set[tuple[Key, Place]] = set()  # what was there when the loop began
        self._looked_at = 0.0
        self._first = True  # nothing was saved yet: callbacks may have read a clock since the loop began
        self._earlier: dict[tuple[Key, Place], Any] = {}  # what was set again: it may be older than this process

    def look(self) -> None:
        """Leave alone what the script itself finds where it was: call it before variables of the loop are set."""
        for holder in self._holders():
            for place, value in places(holder):
                at = holder.key, place
                if at in self._saved and _is_same(value, self._saved[at][2]):
                    del self._saved[at]

    def begin(self) -> None:
        """A loop begins, or goes on: see what its readings are. Those that were saved are set again, each once."""
        self._looked_at = time.monotonic()
        for holder in self._holders():
            for place, value in places(holder):
                at = holder.key, place
                self._met.add(at)
                if at in self._saved:
                    clock, ago_s, _ = self._saved.pop(at)
                    self._set(holder, place, clock, ago_s, value)
                else:
                    self._note(at, value, _age_s)

    def _note(self, at: tuple[Key, Place], value: Any, since_s: Callable[[], float]) -> None:
        """Remember by which clock this value was read since a moment that `since_s` tells, if by one."""
        if at not in self._clocks and (clock := _clock_of(value, since_s)):
            self._clocks[at] = clock
            self._readings[at] = value

    def _set(self, holder: Holder, place: Place, clock: str, ago_s: float, value: Any) -> None:
        now_ago_s = AGO[clock](value)
        if now_ago_s is None:  # the script has no reading there now
            return
        moved = _later(value, now_ago_s - ago_s)
        if len(place) == 1:
            holder.set({place[0]: moved})
        else:
            vars(holder.variables[place[0]])[place[1]] = moved
        self._clocks[holder.key, place] = clock
        self._earlier[holder.key, place] = moved

    def state(self) -> Saved:
        """Return the readings as they are now, and those that no loop has come to yet.

        A value that has changed since the last look was read since then. Shortly after its machine was booted a loss
        may be as large as a reading of the monotonic clock.
        """
        found = [(*at, *reading) for at, reading in self._saved.items()]
        first = self._first
        self._first = False
        looked_at = self._looked_at
        self._looked_at = time.monotonic()

        def since_look_s() -> float:
            return time.monotonic() - looked_at

        for holder in self._holders():
            for place, value in places(holder):
                at = holder.key, place
                if first:
                    of_loop = at in self._met or (isinstance(holder, Frame) and len(place) == 1)
                    self._note(at, value, since_look_s if of_loop else _age_s)
                clock = self._clocks.get(at)
                if clock is None:
                    continue
                ago_s = AGO[clock](value)
                if ago_s is None:
                    continue
                is_same = value in (self._earlier.get(at), self._readings.get(at))
                if is_same or _is_of(clock, ago_s, _age_s if clock in LARGE else since_look_s):
                    self._readings[at] = value
                    found.append((*at, clock, ago_s, value))
        return found


def _is_same(value: Any, other: Any) -> bool:
    """Compare readings; arrays, which have no one truth, are none."""
    return type(value) is type(other) and bool(value == other)


def _clock_of(value: Any, since_s: Callable[[], float]) -> str:
    """Return by which clock this value was read since the moment that `since_s` tells; empty if by none."""
    ago = ((clock, read(value)) for clock, read in AGO.items())
    return next((clock for clock, ago_s in ago if ago_s is not None and _is_of(clock, ago_s, since_s)), "")


def _is_of(clock: str, ago_s: float, since_s: Callable[[], float]) -> bool:
    """True if this clock gave a value `ago_s` seconds ago that was read since the moment that `since_s` tells.

    `since_s` is asked here, behind the clock: asked before, it would be too short by as long as we had no processor.
    """
    return (-AHEAD_S if clock in LOOKS_AHEAD else 0.0) <= ago_s <= since_s()


def _later(value: Any, seconds: float) -> Any:
    """Return this reading as if it had been made so much later."""
    if type(value) is datetime.datetime:
        return value + datetime.timedelta(seconds=seconds)
    return value + (round(seconds * SECOND_NS) if type(value) is int else seconds)
