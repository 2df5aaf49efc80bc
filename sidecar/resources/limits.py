"""Holds the trainer below a number of CPU cores, for FlowCon's limits.

Promises: only this launch's trainer and its children are held; a limit can be set, changed and lifted at any time and
changes only the trainer's speed; a limit left by an earlier sidecar of this launch is lifted first. Uses a control
group where one can be made, else stops and continues the trainer's process group ten times a second. Called by
`service.py` in its sampling thread; the launcher lifts limits left by a killed launch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from pathlib import Path
from typing import Protocol

from sidecar import device_filter
from sidecar.resources.usage import LIMIT_GROUP, process_tree

log = logging.getLogger("sidecar")

PERIOD_S = 0.1
LEAST_QUOTA = 1000  # microseconds, the kernel's minimum
LEAST_CORES = 0.01  # likewise: the kubelet raises anything lower
LEAST_SHARE = 0.01


class LimitMechanism(Protocol):
    """One way to hold processes. `name` is shown to users. Calls are idempotent."""

    @property
    def name(self) -> str: ...

    def hold(self, pid: int, cores: float, used: float | None) -> None:
        """Hold `pid` and its children. Raises OSError if that is not possible here."""

    def lift(self) -> bool:
        """Lift the limit, even one left by an earlier process of ours. Return False if it must be called again."""


class CpuLimiter:
    """Uses the first mechanism that works."""

    def __init__(self, mechanisms: list[LimitMechanism]) -> None:
        self._mechanisms = mechanisms
        self._met: int | None = None
        self._free = self._lift_all()  # whether nothing can still be held

    def hold(self, pid: int | None, cores: float | None, used: float | None = None) -> str:
        """Limit `pid` and its children to `cores`, or lift the limit (None). Return the mechanism in force, or "".

        `used`: cores in use now. Call it repeatedly: each call accounts for new children and current use.
        """
        if pid is not None and pid != self._met:
            self._met = pid
            with contextlib.suppress(OSError):  # a killed sidecar may have left it stopped
                os.killpg(pid, signal.SIGCONT)
        if pid is None or cores is None:
            self._free = self._free or self._lift_all()
            return ""
        self._free = False
        for mechanism in self._mechanisms:
            try:
                mechanism.hold(pid, cores, used)
            except OSError as fault:
                log.info("no CPU limit by %s here: %s", mechanism.name, fault)
                mechanism.lift()
            else:
                self._lift_all(mechanism)
                return mechanism.name
        return ""

    def _lift_all(self, but: LimitMechanism | None = None) -> bool:
        lifted = [mechanism.lift() for mechanism in self._mechanisms if mechanism is not but]
        return all(lifted)


def in_pod(quota: float | None, told: float | None) -> tuple[float | None, str]:
    """Return the limit in force and its origin in a pod, where the launcher limits by resizing the pod.

    `quota`: cores of the trainer's own container; `told`: the limit that FlowCon wants now.
    """
    if quota is None:
        return None, ""
    return quota, "pod resize" if told is not None and quota <= told + LEAST_CORES else "its pod"


def for_launch(name: str, pod: bool) -> CpuLimiter:
    """Return the limiter of a launch, whose `name` is unique on this machine. In a pod only the kubelet limits."""
    return CpuLimiter([] if pod else [ControlGroup(name), StopAndGo()])


class ControlGroup:
    """Holds processes in a control group below ours, with a CPU quota; v1 or v2.

    Used for a trainer that FlowCon limits, and for all processes of an emulated node.
    """

    def __init__(
        self,
        name: str,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        below: ControlGroup | None = None,
    ) -> None:
        """`below`: the parent group; ours by default."""
        self._proc, (ours, self._version) = proc, _cpu_group(proc, cgroups)
        self._parent: Path = ours if below is None else below.folder
        self.folder: Path = self._parent / f"{LIMIT_GROUP}{name}"

    @property
    def name(self) -> str:
        return f"control group v{self._version}"

    @property
    def members(self) -> Path:
        """Return the file that a process enters by writing its pid to it."""
        return self.folder / "cgroup.procs"

    def give(self, cores: float) -> None:
        """Create the group with a quota of `cores`. Raises OSError if that is not possible here."""
        self.folder.mkdir(exist_ok=True)
        period = round(PERIOD_S * 1e6)
        quota = max(LEAST_QUOTA, round(cores * period))
        if self._version == 2:
            (self._parent / "cgroup.subtree_control").write_text("+cpu")
            (self.folder / "cpu.max").write_text(f"{quota} {period}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(period))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota))

    def hold(self, pid: int, cores: float, used: float | None) -> None:
        self.give(cores)
        inside = set[int]()
        while new := process_tree(self._proc, pid) - inside:  # again: one may start meanwhile
            for member in sorted(new):
                with contextlib.suppress(ProcessLookupError):
                    self.members.write_text(str(member))
            inside |= new

    def lift(self) -> bool:
        if self._version == 2 and device_filter.permitted(str(self.folder)) is not None:
            with contextlib.suppress(OSError):  # it never had a quota
                (self.folder / "cpu.max").write_text("max")
            return True  # the shim's: a process moved out of it could open any GPU
        try:
            members = self.members.read_text().split()
        except OSError:
            return True
        for member in members:
            with contextlib.suppress(OSError):
                (self._parent / "cgroup.procs").write_text(member)
        try:
            self.folder.rmdir()
        except OSError:  # a child started meanwhile: the next call finds it
            return False
        return True


def _cpu_group(proc: Path, cgroups: Path) -> tuple[Path, int]:
    """Return our own group of the CPU controller, and the version of control groups."""
    try:
        lines = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
    except OSError:
        lines = []
    for _, controllers, path in (parts for parts in lines if len(parts) == 3):
        if "cpu" in controllers.split(","):
            return cgroups / controllers / path.lstrip("/"), 1
    own = next((parts[2] for parts in lines if len(parts) == 3 and not parts[1]), "/")
    return cgroups / own.lstrip("/"), 2


class StopAndGo:
    """Sends SIGSTOP and SIGCONT to the trainer's process group, so that it runs for a share of each tenth of a second.

    The share follows from the CPU use under the last share, since the number of threads is unknown.
    """

    name = "stop and go"

    def __init__(self) -> None:
        self.share = 1.0
        self._leader: int | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, pid: int, cores: float, used: float | None) -> None:
        at_once = max(1.0, (used or 0.0) / self.share)  # cores while it runs
        self.share = min(1.0, max(LEAST_SHARE, cores / at_once))
        if self._leader != pid:
            share = self.share
            self.lift()
            os.killpg(pid, signal.SIGCONT)  # raises OSError if it leads no group
            self.share = share
            self._leader, self._over = pid, threading.Event()
            self._thread = threading.Thread(target=self._cycle, args=(pid, self._over), name="limit", daemon=True)
            self._thread.start()

    def lift(self) -> bool:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._leader = self._thread = None
        self.share = 1.0
        return True

    def _cycle(self, leader: int, over: threading.Event) -> None:
        try:
            while not over.is_set():
                os.killpg(leader, signal.SIGCONT)
                over.wait(PERIOD_S * self.share)
                if self.share < 1.0 and not over.is_set():
                    os.killpg(leader, signal.SIGSTOP)
                    over.wait(PERIOD_S * (1.0 - self.share))
        except ProcessLookupError:
            return
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGCONT)
