"""Measures what the trainer and its children use: CPU cores, resident memory, block I/O and, in a pod, network I/O.

Promise: a process that is gone, a missing kernel file or a counter that went back yields less information, never an
error. Called by `service.py` once per heartbeat interval, in a thread. Reads the trainer's own control group if it has
one (which also counts children that have ended), else /proc from the trainer down. A trainer in another container is
measured by its shim.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sidecar.protocol import ShimStatus, Usage

LIMIT_GROUP = "reshape-"  # prefix of the groups in which `limits.py` holds trainers
PIECE = 64 * 1024  # bytes per read
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class _Counters:
    cpu_s: float  # ever used
    memory: int  # bytes
    group: bool  # whether a control group counted them: the two methods are not comparable
    block_io: int | None = None  # bytes ever read and written
    network_io: int | None = None  # bytes ever received and sent


class UsageMeter:
    """Measures differences of counters between two samples."""

    def __init__(
        self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup"), network: bool = False
    ) -> None:
        """`network`: whether the network traffic here is the trainer's own, as in a pod."""
        self._proc, self._cgroups, self._network = proc, cgroups, network
        self._last: tuple[int, float, _Counters] | None = None  # pid, when, counters
        self._ours = ""  # our own groups at the last sample

    def sample(self, pid: int | None, now: float, shim: ShimStatus | None = None) -> Usage:
        """Return the usage; cores are the mean since the last sample of the same pid.

        `pid`: the trainer, None if none runs. `shim`: its status if the trainer is in another container, where `pid` is
        not one of our processes.
        """
        counters = None if pid is None else self._counters(pid) if shim is None else _told(shim)
        if counters is not None and self._network:
            counters = replace(counters, network_io=_traffic(self._proc))
        if pid is None or counters is None:
            self._last = None
            return Usage()
        last, self._last = self._last, (pid, now, counters)
        if last is None or last[0] != pid or now <= last[1] or last[2].group != counters.group:
            return Usage(memory=counters.memory)
        before, seconds = last[2], now - last[1]
        return Usage(
            cpu_cores=max(0.0, counters.cpu_s - before.cpu_s) / seconds,
            memory=counters.memory,
            block_io=_rate(before.block_io, counters.block_io, seconds),
            network_io=_rate(before.network_io, counters.network_io, seconds),
        )

    @property
    def moved(self) -> tuple[int | None, int | None]:
        """Return the bytes that this trainer ever moved to and from disks and over the network; None if unknown."""
        return (None, None) if self._last is None else (self._last[2].block_io, self._last[2].network_io)

    def _counters(self, pid: int) -> _Counters | None:
        return self._own_group(pid) or self._tree(pid)

    def _tree(self, pid: int) -> _Counters | None:
        """Return the counters from /proc. Pages shared by several processes count in each."""
        stats = _stats_below(self._proc, pid)
        members = _members(stats, pid)
        if not members:
            return None
        ticks = sum(stats[m][1] for m in members)
        known = [done for m in members if (done := _disk(self._proc, m)) is not None]
        return _Counters(ticks / _TICK, sum(stats[m][2] for m in members) * _PAGE, False, sum(known) if known else None)

    def _own_group(self, pid: int) -> _Counters | None:
        """Return the counters of the trainer's control group, unless it is also ours.

        The group of its CPU limit does not count: it is not charged for what the trainer used before.
        """
        text = kernel_text(f"{self._proc}/{pid}/cgroup")
        if text == self._ours:
            return None
        self._ours = kernel_text(f"{self._proc}/self/cgroup")
        theirs, ours = _groups(text), _groups(self._ours)
        if "" in theirs and theirs[""] != ours.get("") and not Path(theirs[""]).name.startswith(LIMIT_GROUP):
            return self._version_2(self._cgroups / theirs[""].lstrip("/"))
        own = {"cpuacct", "memory"} <= theirs.keys() and all(theirs[c] != ours.get(c) for c in ("cpuacct", "memory"))
        return self._version_1(theirs) if own else None

    def _version_2(self, group: Path) -> _Counters | None:
        used = _pairs(group / "cpu.stat").get("usage_usec")
        memory = _number(group / "memory.current")
        if used is None or memory is None:
            return None
        spare = _pairs(group / "memory.stat").get("inactive_file", 0)
        disk = sum(int(n) for n in re.findall(r"\b[rw]bytes=([0-9]+)", kernel_text(group / "io.stat")))
        return _Counters(used / 1e6, max(0, memory - spare), True, disk)

    def _version_1(self, groups: dict[str, str]) -> _Counters | None:
        cpu, memory = (self._cgroups / c / groups[c].lstrip("/") for c in ("cpuacct", "memory"))
        used, held = _number(cpu / "cpuacct.usage"), _number(memory / "memory.usage_in_bytes")
        if used is None or held is None:
            return None
        spare = _pairs(memory / "memory.stat").get("total_inactive_file", 0)
        return _Counters(used / 1e9, max(0, held - spare), True)


def _groups(text: str) -> dict[str, str]:
    """Return controller -> path; version 2 has the controller ''."""
    lines = [line.split(":", 2) for line in text.splitlines()]
    return {c: parts[2] for parts in lines if len(parts) == 3 for c in parts[1].split(",")}


def cpu_quota(cgroups: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the CPU quota of our own container, in cores; None without one."""
    words = kernel_text(cgroups / "cpu.max") or " ".join(
        kernel_text(cgroups / f"cpu/cpu.cfs_{w}_us") for w in ("quota", "period")
    )
    numbers = [int(word) for word in words.split() if word.isdecimal()]
    return numbers[0] / numbers[1] if len(numbers) == 2 and numbers[1] else None


def _told(shim: ShimStatus) -> _Counters | None:
    if shim.cpu_s is None or shim.memory is None:
        return None
    return _Counters(shim.cpu_s, shim.memory, True, shim.block_io)


def _rate(before: int | None, now: int | None, seconds: float) -> float | None:
    return None if before is None or now is None else max(0, now - before) / seconds


def _disk(proc: Path, pid: int) -> int | None:
    """Return the bytes that a process and its reaped children moved to and from disks."""
    found = dict(re.findall(r"(?m)^(read_bytes|write_bytes): ([0-9]+)$", kernel_text(f"{proc}/{pid}/io")))
    return sum(map(int, found.values())) if found else None


def _traffic(proc: Path) -> int | None:
    """Return the bytes received and sent by all network devices except the loopback."""
    rows = [line.partition(":") for line in kernel_text(proc / "net" / "dev").splitlines()]
    fields = [after.split() for name, _, after in rows if after and name.strip() != "lo"]
    return sum(int(one[0]) + int(one[8]) for one in fields if len(one) > 8 and one[0].isdecimal()) if fields else None


def process_tree(proc: Path, pid: int) -> set[int]:
    """Return the process and all its descendants; empty if it is gone."""
    return _members(_stats(proc), pid)


def processor_seconds(proc: Path, pid: int) -> tuple[set[int], float]:
    """Return the process with all its descendants, and the CPU seconds that they have used in total."""
    stats = _stats_below(proc, pid)
    members = _members(stats, pid)
    return members, sum(stats[m][1] for m in members) / _TICK


_Stats = dict[int, tuple[int, int, int]]
"""pid -> (parent, ticks of itself and of children it has reaped, resident pages)."""


def _members(stats: _Stats, pid: int) -> set[int]:
    members, waiting = set[int](), [pid] if pid in stats else []
    while waiting:
        one = waiting.pop()
        members.add(one)
        waiting += [child for child, (parent, *_) in stats.items() if parent == one and child not in members]
    return members


def _stats_below(proc: Path, pid: int) -> _Stats:
    """Return the process and its descendants, from the kernel's child lists; all processes where it keeps none."""
    if not os.path.exists(f"{proc}/{pid}/task/{pid}/children"):  # noqa: PTH110
        return _stats(proc)
    found, waiting = set[int](), [pid]
    while waiting:
        one = waiting.pop()
        found.add(one)
        tasks = f"{proc}/{one}/task"
        with contextlib.suppress(OSError):
            for task in os.listdir(tasks):  # noqa: PTH208 (of a process with many threads, at each heartbeat)
                waiting += [
                    child for child in map(int, kernel_text(f"{tasks}/{task}/children").split()) if child not in found
                ]
    return _stats(proc, [str(one) for one in found])


def _stats(proc: Path, pids: Iterable[str] | None = None) -> _Stats:
    """Return the stats of these processes, or of all."""
    found: _Stats = {}
    for pid in [entry.name for entry in proc.iterdir() if entry.name.isdigit()] if pids is None else pids:
        # The command name is in parentheses and may itself contain spaces and parentheses.
        fields = kernel_text(f"{proc}/{pid}/stat").rpartition(")")[2].split()
        if len(fields) > 21:
            found[int(pid)] = (int(fields[1]), sum(map(int, fields[11:15])), int(fields[21]))
    return found


def kernel_text(path: Path | str) -> str:
    """Return a kernel file's content; not with `open`, which makes twice as many system calls."""
    pieces: list[bytes] = []
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while piece := os.read(file, PIECE):
                pieces.append(piece)
        finally:
            os.close(file)
    except OSError:  # the process is gone, or this kernel has no such file
        return ""
    return b"".join(pieces).decode(errors="replace")


def _number(path: Path) -> int | None:
    text = kernel_text(path).strip()
    return int(text) if text.isdecimal() else None


def _pairs(path: Path) -> dict[str, int]:
    rows = [line.split() for line in kernel_text(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
