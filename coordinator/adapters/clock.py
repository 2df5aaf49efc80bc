"""The system's clocks, as the Clock port, and times as people read them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

from reshape_hooks.plain import boot_id


class SystemClock:
    """`now` runs on while the machine sleeps and never jumps; `wall` is for people."""

    def __init__(self) -> None:
        self._boot_id = boot_id()

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()

    def boot_id(self) -> str:
        return self._boot_id


def local_time(value: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Seconds since 1970 as local time; as the number that it is where no calendar has that day."""
    try:
        return time.strftime(form, time.localtime(value))
    except (OverflowError, ValueError, OSError):
        return str(value)


def time_in_zone(zone: str) -> Callable[[float], str]:
    """Return what formats seconds since 1970 as `local_time` does, in a zone such as Europe/Berlin.

    In this machine's zone if it knows none of that name.
    """
    try:
        known = ZoneInfo(zone)
    except (KeyError, ValueError, OSError):  # KeyError: not found; ValueError: a name that leaves the folder of zones
        return local_time

    def formatted(value: float) -> str:
        try:
            return datetime.fromtimestamp(value, known).strftime("%Y-%m-%d %H:%M:%S")
        except (OverflowError, ValueError, OSError):
            return str(value)

    return formatted
