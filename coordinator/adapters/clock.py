"""The system's clocks, as the Clock port."""

from __future__ import annotations

import time


class SystemClock:
    """`now` runs on while the machine sleeps and never jumps; `wall` is for people."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()
