"""Reads our container's usage and limits, from control groups v2 or v1.

Promise: a missing file yields less information, never an error. Standard library, Python 3.8: `shim.py` loads it from
its own folder.
"""

import contextlib
import os
from typing import Any

GROUP = "/sys/fs/cgroup/"
NO_LIMIT = 1 << 60  # bytes: v1 reports a huge number where there is no limit


def counted(path: str, *names: str) -> "list[int]":
    """Return the numbers in a file of our container's control group: all, or those after these names."""
    with contextlib.suppress(OSError), open(GROUP + path) as file:
        words = file.read().replace("=", " ").split()
        named = [word for before, word in zip(["", *words], words) if not names or before in names]
        return [int(word) for word in named if word.lstrip("-").isdigit()]
    return []


def memory() -> "int | None":
    """Return the bytes that our container uses, without those that the kernel may reclaim at once."""
    for name, spare in ("memory.current", "inactive_file"), ("memory/memory.usage_in_bytes", "total_inactive_file"):
        held = counted(name)
        if held:
            return max(0, held[0] - sum(counted(os.path.join(os.path.dirname(name), "memory.stat"), spare)))
    return None


def use() -> "dict[str, Any]":
    """Return our container's usage and limits, from control groups v2 or v1."""
    used = counted("cpu.stat", "usage_usec")
    disk, quota, weight, unit = counted("io.stat", "rbytes", "wbytes"), counted("cpu.max"), counted("cpu.weight"), 1e6
    if not used:
        used, disk = counted("cpuacct/cpuacct.usage"), counted("blkio/blkio.throttle.io_service_bytes", "Read", "Write")
        quota = counted("cpu/cpu.cfs_quota_us") + counted("cpu/cpu.cfs_period_us")
        weight, unit = counted("cpu/cpu.shares"), 1e9
    return {
        "cpu_s": used[0] / unit if used else None,
        "cpu_weight": weight[0] if weight else None,
        "memory": memory(),
        "cpu_limit": quota[0] / quota[1] if len(quota) == 2 and quota[0] > 0 else None,
        "block_io": sum(disk) if used else None,
    }


def limits() -> "tuple[int, int | None, bool]":
    """Return our memory limit (0: none), usage, both in bytes, and whether exceeding it kills the whole container."""
    limit = counted("memory.max") or counted("memory/memory.limit_in_bytes")
    if not limit or limit[0] >= NO_LIMIT:
        return 0, None, False
    return limit[0], memory(), counted("memory.oom.group") == [1]
