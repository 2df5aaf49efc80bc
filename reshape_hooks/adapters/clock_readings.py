"""Carries the time that a script measures across a stop, without the pause.

    start = time.time()
    for step in state.steps(...):
        if time.time() - start > budget: break

The new start reads the clock anew, so that such a budget, and any rate based on it, would restart at each stop.
Promises: a variable that holds a reading of this process when its loop begins is as far from now after a stop as before
it; anything else is left alone. A wall-clock time in the future, such as `time.time() + budget`, is such a reading,
too, but not one that the new start finds unchanged, such as a deadline read from a file. Called by `variables`;
standard library, Python 3.8 and newer.
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

    Saved = Sequence[tuple[Key, Place, str, float, Any]]  # which clock this value was read from, and how long ago

SECOND_NS, MOST_NS = 1_000_000_000, 1 << 63
AHEAD_S = 30 * 86_400.0  # how far ahead a time may be that a script still waits for
DIGITS = 3  # decimals: a number with more was not typed


def _age_s() -> float:
    """Return how long this process has run; 0 if unknown."""
    started_s = _started_s(os.getpid())
    return 0.0 if started_s is None else plain.boottime() - started_s


@functools.lru_cache(1)
def _started_s(pid: int) -> float | None:
    """Return when this process was started, by the boot clock; None if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _of_floats(clock: Callable[[], float]) -> Callable[[Any], float | None]:
    """Return a function that tells how many seconds ago `clock` gave a value; None if it can hardly have."""
    return lambda value: clock() - value if type(value) is float and round(value, DIGITS) != value else None


def _of_integers(clock: Callable[[], int]) -> Callable[[Any], float | None]:
    return lambda value: (clock() - value) / SECOND_NS if type(value) is int and SECOND_NS < value < MOST_NS else None


def _of_dates(value: Any) -> float | None:
    if type(value) is not datetime.datetime or not value.microsecond:
        return None
    try:
        return time.time() - value.timestamp()
    except (OverflowError, ValueError, OSError):  # a date that no clock here can represent
        return None


# Clock name -> how long ago a value was read from it. `perf_counter` is the monotonic clock here.
AGO: dict[str, Callable[[Any], float | None]] = {
    "time": _of_floats(lambda: time.time()),
    "monotonic": _of_floats(lambda: time.monotonic()),
    "time_ns": _of_integers(lambda: time.time_ns()),
    "monotonic_ns": _of_integers(lambda: time.monotonic_ns()),
    "datetime": _of_dates,
}
LOOKS_AHEAD = ("time", "datetime")  # for whose times a script may wait
LARGE = (*LOOKS_AHEAD, "time_ns")  # whose size alone identifies a value as a time


class ClockReadings:
    """Clock readings in variables of functions and objects, and in attributes of the script's objects in these.

    `holders`: returns the script's functions and objects as of now. `saved`: what `state` returned.
    """

    def __init__(self, holders: Callable[[], Sequence[Holder]], saved: Saved = ()) -> None:
        self._holders = holders
        self._saved = {(key, place): (clock, ago_s, value) for key, place, clock, ago_s, value in saved}
        self._clocks: dict[tuple[Key, Place], str] = {}
        self._readings: dict[tuple[Key, Place], Any] = {}  # as of the last look
        self._met: set[tuple[Key, Place]] = set()  # what was there when the loop began
        self._looked_at = 0.0
        self._first = True  # nothing has been saved yet: callbacks may have read a clock since the loop began
        self._earlier: dict[tuple[Key, Place], Any] = {}  # restored readings: they may be older than this process

    def look(self) -> None:
        """Exclude what the script itself finds unchanged; call it before the loop's variables are restored."""
        for holder in self._holders():
            for place, value in places(holder):
                at = holder.key, place
                if at in self._saved and _is_same(value, self._saved[at][2]):
                    del self._saved[at]

    def begin(self) -> None:
        """Find the readings as a loop begins or resumes. Saved ones are restored, each once."""
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
        """Remember which clock this value was read from, if any, within the time that `since_s` returns."""
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
        """Return the present readings, and the saved ones that no loop has reached yet.

        A value that has changed since the last look was read since then: shortly after boot, a loss may be as large as
        a reading of the monotonic clock.
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
    """Compare readings; arrays, which have no single truth value, are not readings."""
    return type(value) is type(other) and bool(value == other)


def _clock_of(value: Any, since_s: Callable[[], float]) -> str:
    """Return the clock from which this value was read within the time that `since_s` returns; empty if none."""
    ago = ((clock, read(value)) for clock, read in AGO.items())
    return next((clock for clock, ago_s in ago if ago_s is not None and _is_of(clock, ago_s, since_s)), "")


def _is_of(clock: str, ago_s: float, since_s: Callable[[], float]) -> bool:
    """Return whether this clock could have given, `ago_s` seconds ago, a value read within `since_s()`.

    `since_s` is called here, after the clock: called before, it would be short by any time without a CPU.
    """
    return (-AHEAD_S if clock in LOOKS_AHEAD else 0.0) <= ago_s <= since_s()


def _later(value: Any, seconds: float) -> Any:
    """Return this reading shifted later by `seconds`."""
    if type(value) is datetime.datetime:
        return value + datetime.timedelta(seconds=seconds)
    return value + (round(seconds * SECOND_NS) if type(value) is int else seconds)
