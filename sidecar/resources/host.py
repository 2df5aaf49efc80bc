"""Measures the load of the machine: R(w, t) of SpeCon, which breaks ties between nodes.

Promise: shares between 0 and 1, or None where they cannot be known; never raises. /proc/stat and /proc/meminfo tell
of the whole machine, also inside a container: that is the load meant here. Called by the node agent at each report.
"""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
IDLE = (3, 4)  # columns of /proc/stat: idle, and idle because a disk is slow
TIMES = 8  # columns that add up to all time; those of guests are counted in the first two


class HostUsage:
    """`cpu` is the share of cores that were busy since it was last asked."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before = self._times()

    def cpu(self) -> float | None:
        before, now = self._before, self._times()
        self._before = now or before
        if not before or not now:
            return None
        whole = sum(now) - sum(before)
        idle = sum(now[i] - before[i] for i in IDLE)
        return min(1.0, max(0.0, 1.0 - idle / whole)) if whole > 0 else None

    def memory(self) -> float | None:
        """What is not free for a new process: caches count as free."""
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
            bytes_of = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
            return min(1.0, max(0.0, 1.0 - bytes_of["MemAvailable"] / bytes_of["MemTotal"]))
        except (OSError, ValueError, LookupError, ZeroDivisionError):
            return None

    def _times(self) -> list[int]:
        """Of all cores together since the machine started; empty where nobody tells."""
        try:
            words = (self._proc / "stat").read_text().split("\n", 1)[0].split()
            times = [int(word) for word in words[1 : 1 + TIMES]]
        except (OSError, ValueError):
            return []
        return times if words[:1] == ["cpu"] and len(times) == TIMES else []
