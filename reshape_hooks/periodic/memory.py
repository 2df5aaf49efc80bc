"""Measures how much memory is free. Called by `saver`."""

from __future__ import annotations

from pathlib import Path

MEMINFO = "/proc/meminfo"
MEMORY = {  # a container's memory files, for control groups v2 and v1
    "/sys/fs/cgroup/memory.max": ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"),
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": (
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file",
    ),
}


def free_memory() -> int:
    """Return the bytes of memory that this machine and our container have free."""
    left = _number_in(MEMINFO, "MemAvailable:") * 1024
    for limit, (used, details, droppable) in MEMORY.items():
        most = _number_in(limit)
        if most:
            left = min(left, most - _number_in(used) + _number_in(details, droppable))
    return left


def _number_in(path: str, name: str = "") -> int:
    """Return the number after this word, or the first in the file; 0 if there is none."""
    try:
        words = ["", *Path(path).read_text(encoding="ascii").split()]
        return int(words[words.index(name) + 1])
    except (OSError, ValueError, IndexError):
        return 0
