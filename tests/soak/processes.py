"""The processes, files and memory of one soak: finds, signals, counts them. Signals only what is of its folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import stat
from pathlib import Path

MIB = 1 << 20
SHM = Path("/dev/shm")
HOLDER_WORDS = 10  # of the command by which a shim starts what writes its copies, if that holds nothing on a GPU


def send(pid: int, number: int, folder: Path) -> bool:
    """Send a signal to a process if it still is one of this folder; the number may be another one's by now."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if str(folder).encode() in Path(f"/proc/{pid}/environ").read_bytes() + _command(pid):
                signal.pidfd_send_signal(handle, number)
                return True
        finally:
            os.close(handle)
    return False


def launchers(coordinator: int) -> list[int]:
    """The commands by which a coordinator starts and ends shims now; a shim that has detached is not among them."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = {coordinator}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sorted(pid for pid in family - {coordinator} if b"shim.py" in _command(pid))


def holders(folder: Path) -> list[tuple[str, int]]:
    """The job and the process of each state that is held on a GPU for trainers of this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        words = os.fsdecode(_command(int(entry.name))).split("\0")
        if len(words) > HOLDER_WORDS and words[3].endswith("sidecar/memory.py") and words[6].startswith(str(folder)):
            found.append((words[7], int(entry.name)))
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def memory(pid: int) -> tuple[float, int]:
    """MiB resident and open files of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def in_memory(launches: set[Path]) -> list[str]:
    """Folders that the shims of these launches left in /dev/shm (`sidecar/memory.py:MemoryCopy`)."""
    ends = tuple(hashlib.sha256(os.fsencode(launch)).hexdigest()[:8] for launch in launches)
    return sorted(path.name for path in SHM.glob("reshape-*") if path.name.endswith(ends or ("-none",)))


def sockets(folder: Path) -> list[str]:
    """Sockets that lie below a folder."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += [str(path)] if stat.S_ISSOCK(path.lstat().st_mode) else []
    return found
