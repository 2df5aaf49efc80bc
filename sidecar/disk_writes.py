"""Tells whether processes of a trainer still write what their script wants to keep, such as a snapshot or an upload.

Promises: bytes count that go to a disk, or wait to be sent over a network; a line of a log now and then does not, nor
does what is printed. Where /proc does not show it, nothing is written. Standard library, Python 3.8: `shim.py` loads it
from its own folder. Times are CLOCK_BOOTTIME.
"""

import contextlib
import os
from typing import Dict, Iterable, Set

LOOK_S = 1.0  # between two looks
QUIET_S = 3.0  # a process pauses for less while it writes
LEAST = 25_000  # bytes per second, six pages: small files that are forced to the disk one after the other are as slow
BRIEF_S = 0.1  # what may lie between two looks at least


class DiskWrites:
    """Bytes that some processes have written, from one look to the next."""

    def __init__(self) -> None:
        self.written: Dict[int, int] = {}
        self.begun = False
        self.looked_at = self.look_at = self.wrote_at = 0.0

    def begin(self, pids: Iterable[int], now: float) -> None:
        """Count from now on."""
        self.begun = True
        self.written = {pid: written_by(pid) for pid in pids}
        self.looked_at = now
        self.look_at = 0.0  # the first answer must not wait

    def is_due(self, now: float) -> bool:
        """Return whether `go_on` would look at processes. Else it needs none, and to find them all takes a while."""
        return not self.begun or now >= self.look_at

    def go_on(self, pids: Set[int], now: float, unanswered: Iterable[int]) -> bool:
        """Return whether one of these wrote in the last seconds, or waits for a disk or a network.

        `unanswered`: those of them that were not asked to end. One that a signal has paused may be in the middle of a
        write. Without a beginning the first answer is that they may write.
        """
        if not self.begun:
            self.begin(pids, now)
            self.look_at = now + LOOK_S
            self.wrote_at = now + LOOK_S + BRIEF_S - QUIET_S
        elif self.is_due(now):
            before = self.written
            self.written = {pid: written_by(pid) for pid in pids}
            new = sum(max(0, count - before.get(pid, 0)) for pid, count in self.written.items())
            waits = any(state_of(pid) == "D" for pid in pids) or any(state_of(pid) in "tT" for pid in unanswered)
            if waits or new > LEAST * max(BRIEF_S, now - self.looked_at) or any_sends(pids):
                self.wrote_at = now
            self.looked_at = now
            self.look_at = now + LOOK_S
        return now < self.wrote_at + QUIET_S


def written_by(pid: int) -> int:
    """Return how many bytes this process has had written to disks so far; 0 if that is not readable."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/io") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("write_bytes:"))
    return 0


def state_of(pid: int) -> str:
    """Return the state of a process, as in proc(5): D waits for a disk, T is paused by a signal; - if it is gone."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
    return "-"


def any_sends(pids: Iterable[int]) -> bool:
    """Return whether one of these has data on the way that its receiver has not acknowledged."""
    sending = set(_sending_sockets())
    return bool(sending) and any(sending & _sockets_of(pid) for pid in pids)


def _sending_sockets() -> "Iterable[str]":
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/self/net/{name}") as file:
            for fields in map(str.split, list(file)[1:]):
                if int(fields[4].partition(":")[0], 16):  # bytes in its send queue
                    yield f"socket:[{fields[9]}]"


def _sockets_of(pid: int) -> Set[str]:
    found = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.add(os.readlink(os.path.join(folder, name)))
    return found
