"""Measures the cores and memory that other people's processes use on this machine and no training can have.

Promises: our own use is never counted as others', even when one of our processes begins or ends between two samples;
never raises. Only CPUs on which this process may run count, as only these are given to trainings. A sample's cost grows
with the number of our processes, not the machine's. Called by `reshape/services/machine_load.py` at each heartbeat.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from sidecar.resources.host import IDLE, PROC, TIMES, memory_bytes
from sidecar.resources.usage import kernel_text, processor_seconds

TICKS = os.sysconf("SC_CLK_TCK")
PROCESSOR = re.compile(r"(?m)^cpu([0-9]+) (.*)$")
FIELD = re.compile(r"(?m)^(\w+):\s+([0-9]+) kB$")


@dataclass(frozen=True)
class MachineUse:
    """Mean use of the machine since the last sample: shares of the whole, and the part that is not ours."""

    cpu_use: float
    memory_use: float
    others_cores: float
    others_memory: float  # bytes


class MachineMeter:
    """Measures the difference between two samples."""

    def __init__(self, proc: Path = PROC, processors: Collection[int] | None = None) -> None:
        self._proc = proc
        self._processors = frozenset(os.sched_getaffinity(0) if processors is None else processors)
        self._last: tuple[float, float, dict[int, float]] | None = None  # when, busy seconds, those of our trees

    def sample(self, roots: Iterable[int], now: float) -> MachineUse | None:
        """Return the use since the last call; None at the first one, and where the kernel does not tell.

        `roots`: processes that are ours with all their descendants. `now`: seconds of a monotonic clock.
        """
        busy_s, whole, unused = self._busy_s(), *memory_bytes(self._proc)
        seconds, members = dict[int, float](), set[int]()
        for root in sorted(set(roots)):
            if root not in members:  # else it is a descendant of another one
                found, seconds[root] = processor_seconds(self._proc, root)
                members |= found
        last, self._last = self._last, None if busy_s is None else (now, busy_s, seconds)
        if last is None or busy_s is None or now <= last[0] or whole <= 0:
            return None
        lasted = now - last[0]
        # A tree that began since then used all its time since then; one that has ended is no longer visible.
        ours = sum(max(0.0, used - last[2].get(root, 0.0)) for root, used in seconds.items())
        all_of_it = max(0.0, busy_s - last[1])
        held = sum(_held(self._proc, pid) for pid in members)
        return MachineUse(
            cpu_use=min(1.0, all_of_it / lasted / len(self._processors)),
            memory_use=min(1.0, max(0.0, 1.0 - unused / whole)),
            others_cores=min(max(0.0, all_of_it - ours) / lasted, float(len(self._processors))),
            others_memory=float(max(0, whole - unused - held)),
        )

    def _busy_s(self) -> float | None:
        """Return the seconds that our CPUs have been busy since boot, in total."""
        rows = PROCESSOR.findall(kernel_text(self._proc / "stat"))
        times = [list(map(int, words.split()[:TIMES])) for number, words in rows if int(number) in self._processors]
        if not times or any(len(one) < TIMES for one in times):
            return None
        return sum(sum(one) - sum(one[i] for i in IDLE) for one in times) / TICKS


def _held(proc: Path, pid: int) -> int:
    """Return a process's unreclaimable bytes: file-backed pages do not count."""
    fields = dict(FIELD.findall(kernel_text(proc / str(pid) / "status")))
    return (int(fields.get("RssAnon", 0)) + int(fields.get("RssShmem", 0))) * 1024
