"""The machine of a soak: its GPUs as NVML shows them, its wall clock, its limit of open files, its foreign processes.

All of it belongs to processes of the soak only. The coordinator is `reshape` with a clock that the soak sets, and finds
GPUs through a module `pynvml` of the soak's folder, as its sidecars do; whatever else reads GPUs or clocks is the
product's. Run as a module it is that coordinator. What a clock that is really set changes beside it, times of files,
is not seen.
"""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reshape_hooks.plain import boottime
from sidecar import gpu_locks
from tests.fakes.fake_pynvml import FakeGpu, FakeNvml, _Process
from tests.soak.oracle import Other

ROOT = Path(__file__).resolve().parents[2]
GPUS = 4
FILES = 256  # that a process of the soak may have open
CONNECTIONS = FILES + 64  # that are held against one
WAIT_S = 60.0  # for which somebody else waits for the lock of a GPU
FOLDER = "RESHAPE_SOAK_MACHINE"
PYNVML = """
from pathlib import Path
from tests.soak.machine import Nvml
nvml = Nvml.of(Path(__file__).parent)
def __getattr__(name):
    return getattr(nvml, name)
"""
HOLDER = """
import sys, time
from sidecar import gpu_locks
from reshape_hooks.plain import boottime
until = boottime() + float(sys.argv[3])
while (held := gpu_locks.take_lock(sys.argv[1])) is None and boottime() < until:
    time.sleep(0.002)
if held is not None:
    print(boottime(), flush=True)
    time.sleep(float(sys.argv[2]))
    print(boottime(), flush=True)
"""
SLEEPER = "import time; time.sleep(1e6)"


class Machine:
    """The folder by which processes of the soak know it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        self.gpus = [f"GPU-soak-{name}-{index}" for index in range(GPUS)]

    def make(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "pynvml.py").write_text(PYNVML)
        self.jump(0.0)

    def jump(self, ahead_s: float) -> None:
        """Set the wall clock."""
        _write(self.folder / "ahead", str(ahead_s))

    def wall(self, true: Callable[[], float]) -> float:
        return true() + float((self.folder / "ahead").read_text())

    def use(self, gpu: str, pids: list[int]) -> None:
        """Have NVML show these processes on a GPU, beside those that hold its lock."""
        _write(self.folder / gpu, " ".join(map(str, pids)))

    def users(self, gpu: str) -> list[int]:
        with suppress(OSError):
            return [int(pid) for pid in (self.folder / gpu).read_text().split()]
        return []

    def remove(self) -> None:
        """Remove what lies outside the folder: the files of the GPUs' locks."""
        for gpu in self.gpus:
            Path(gpu_locks.path_of(gpu)).unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


class Nvml(FakeNvml):
    """NVML of this machine."""

    machine: Machine

    @classmethod
    def of(cls, folder: Path) -> Nvml:
        machine = Machine(folder)
        one = cls([FakeGpu(gpu) for gpu in machine.gpus])
        one.machine = machine
        return one

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[_Process]:
        return [_Process(pid) for pid in self.machine.users(handle.uuid)]


@dataclass
class Foreigner:
    """A process that is not ours and uses a GPU."""

    gpu: str
    process: subprocess.Popen[str]
    until: float  # monotonic
    shown: bool  # whether NVML shows it; else it holds the lock
    shown_at: float | None = None  # boot time: since when the coordinator keeps the GPU from jobs

    def end(self, machine: Machine) -> list[Other]:
        """End it, and return what it did; nothing if it came to nothing."""
        until = boottime()
        if self.shown:
            machine.use(self.gpu, [pid for pid in machine.users(self.gpu) if pid != self.process.pid])
        self.process.kill()
        times = [float(line) for line in self.process.communicate()[0].split()]
        if self.shown:
            return [] if self.shown_at is None else [Other(self.gpu, self.shown_at, until, locked=False)]
        return [Other(self.gpu, times[0], (*times, until)[1], locked=True)] if times else []


def foreign_process(folder: Path, gpu: str, for_s: float) -> Foreigner:
    """Begin one that NVML shows; who calls puts it there."""
    return Foreigner(gpu, _begun(SLEEPER, str(folder)), time.monotonic() + for_s, shown=True)


def foreign_lock(folder: Path, gpu: str, for_s: float) -> Foreigner:
    """Begin one that waits for the lock of a GPU and then holds it; it prints since when and until when."""
    process = _begun(HOLDER, gpu, str(for_s), str(WAIT_S), str(folder))
    return Foreigner(gpu, process, time.monotonic() + 2 * WAIT_S + for_s, shown=False)


def _begun(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)


@dataclass
class Connections:
    """Held open against one process, half of them with a request that never ends; opened again where it closes them."""

    url: str
    until: float  # monotonic
    held: list[socket.socket] = field(default_factory=list)

    def press(self) -> None:
        for one in [one for one in self.held if _closed(one)]:
            one.close()
            self.held.remove(one)
        address = urlsplit(self.url)
        for number in range(CONNECTIONS - len(self.held)):
            with suppress(OSError):
                one = socket.socket()
                one.setblocking(False)
                self.held.append(one)
                one.connect_ex((address.hostname, address.port))
                if number % 2:
                    one.send(b"POST /v1/jobs HTTP/1.1\r\nHost: ")

    def close(self) -> None:
        for one in self.held:
            one.close()
        self.held = []


def _closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def with_gpus_of(folder: Path, sidecar: list[str]) -> list[str]:
    """Return the command of a sidecar that finds the GPUs of this machine."""
    return [word.replace("PYTHONPATH=", f"PYTHONPATH={folder}:", 1) for word in sidecar]


def main() -> None:
    machine = Machine(Path(os.environ[FOLDER]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    sys.path.insert(0, str(machine.folder))
    true, true_ns = time.time, time.time_ns
    time.time = lambda: machine.wall(true)
    time.time_ns = lambda: int(machine.wall(lambda: true_ns() / 1e9) * 1e9)

    from launcher import local
    from reshape.cli.main import main as reshape

    spec: Any = local.launch_spec

    def launch_spec(job: Any, folders: Any, coordinator: str, sidecar: list[str], *more: Any) -> dict[str, Any]:
        return dict(spec(job, folders, coordinator, with_gpus_of(machine.folder, sidecar), *more))

    local.launch_spec = launch_spec  # type: ignore[assignment]
    reshape()


if __name__ == "__main__":
    main()
