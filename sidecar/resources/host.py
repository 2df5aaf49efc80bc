"""Measures the machine's load: R(w, t) of SpeCon, which breaks ties between nodes.

Promise: shares between 0 and 1, or None if unknown; never raises. /proc/stat and /proc/meminfo describe the whole
machine, even inside a container, as needed here. Called by the node agent at each report.
"""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.resources.usage import kernel_text

PROC = Path("/proc")
IDLE = (3, 4)  # columns of /proc/stat: idle and iowait
TIMES = 8  # columns that add up to all time; guest times are included in the first two


class HostUsage:
    """Measures the machine's use of CPU and memory."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before = self._times()

    def cpu(self) -> float | None:
        """Return the share of CPU time that was busy since the last call."""
        before, now = self._before, self._times()
        self._before = now or before
        if not before or not now:
            return None
        whole = sum(now) - sum(before)
        idle = sum(now[i] - before[i] for i in IDLE)
        return min(1.0, max(0.0, 1.0 - idle / whole)) if whole > 0 else None

    def memory(self) -> float | None:
        """Return the share of memory that is not available to a new process; caches count as available."""
        whole, available = memory_bytes(self._proc)
        return min(1.0, max(0.0, 1.0 - available / whole)) if whole else None

    def _times(self) -> list[int]:
        """Return the CPU times of all cores since boot; empty if unreadable."""
        try:
            words = (self._proc / "stat").read_text().split("\n", 1)[0].split()
            times = [int(word) for word in words[1 : 1 + TIMES]]
        except (OSError, ValueError):
            return []
        return times if words[:1] == ["cpu"] and len(times) == TIMES else []


def memory_bytes(proc: Path) -> tuple[int, int]:
    """Return the bytes of total and of available memory; zeros if unknown."""
    found = dict(re.findall(r"(?m)^(MemTotal|MemAvailable):\s+([0-9]+) kB$", kernel_text(proc / "meminfo")))
    return (int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024) if len(found) == 2 else (0, 0)
