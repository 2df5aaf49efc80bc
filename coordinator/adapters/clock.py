"""The system's clocks, as the Clock port, and times as people read them."""

from __future__ import annotations

import time

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


def zone_minutes() -> int:
    """Return the minutes by which local time is ahead of UTC now."""
    return time.localtime().tm_gmtoff // 60
