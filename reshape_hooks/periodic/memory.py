"""How much memory is left. Called by `saver`."""

from __future__ import annotations

from pathlib import Path

MEMINFO = "/proc/meminfo"
MEMORY = {  # the files of a container's limits, for both versions of the kernel's interface
    "/sys/fs/cgroup/memory.max": ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"),
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": (
        "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file",
    ),
}  # fmt: skip


def free_memory() -> int:
    """Return the bytes that this machine and the container that we are in have left."""
    left = _number_in(MEMINFO, "MemAvailable:") * 1024
    for limit, (used, details, droppable) in MEMORY.items():
        most = _number_in(limit)
        if most:
            left = min(left, most - _number_in(used) + _number_in(details, droppable))
    return left


def _number_in(path: str, name: str = "") -> int:
    """Return the number behind this word, or the first of the file; 0 if there is none."""
    try:
        words = ["", *Path(path).read_text(encoding="ascii").split()]
        return int(words[words.index(name) + 1])
    except (OSError, ValueError, IndexError):
        return 0
