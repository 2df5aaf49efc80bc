"""What processes that are not ours use of a machine: of real processes, and of a kernel that tells little."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sidecar.resources.machine import MachineMeter, MachineUse
from tests.patience import eventually

BURNS = "while True: pass"
HOLDS = "held = bytearray(b'x') * (600 * 2**20); import time; time.sleep(600)"
PROCESSORS = len(os.sched_getaffinity(0))


@contextmanager
def python(code: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(meter: MachineMeter, roots: list[int], pid: int) -> tuple[MachineUse, float]:
    """The use while the process works for a second of CPU time, however long that takes; and how long it took."""
    meter.sample(roots, began := time.monotonic())
    until = cpu_s(pid) + 1.0
    eventually(lambda: cpu_s(pid) >= until, "it works", 60)
    found = meter.sample(roots, now := time.monotonic())
    assert found is not None
    return found, now - began


def test_a_process_that_is_not_ours_uses_cores_and_one_of_ours_does_not() -> None:
    with python(BURNS) as pid:
        meter = MachineMeter()
        theirs, lasted = measured(meter, [], pid)
        assert 0.9 / lasted <= theirs.others_cores <= PROCESSORS
        assert theirs.cpu_use >= 0.9 / lasted / PROCESSORS
        ours, lasted = measured(meter, [pid], pid)
        assert ours.others_cores <= ours.cpu_use * PROCESSORS - 0.9 / lasted


def test_children_of_ours_are_ours_also_when_they_have_ended() -> None:
    child = "import time\nwhile time.process_time() < 1: pass"
    waits = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {child!r}]); time.sleep(600)"
    meter = MachineMeter()
    with python(waits) as pid:
        meter.sample([pid], began := time.monotonic())
        status = Path(f"/proc/{pid}/stat")
        eventually(lambda: int(status.read_text().rpartition(")")[2].split()[13]) > 0, "its child has ended", 60)
        found = meter.sample([pid], now := time.monotonic())
    assert found is not None
    used = found.cpu_use * PROCESSORS * (now - began)
    assert found.others_cores * (now - began) < used - 0.8


def test_memory_of_others_counts_and_ours_does_not() -> None:
    with python(HOLDS) as pid:
        status = Path(f"/proc/{pid}/status")
        eventually(
            lambda: int(status.read_text().partition("RssAnon:")[2].split()[0]) > 600 * 1024, "it has its memory", 60
        )
        meter = MachineMeter()
        meter.sample([], time.monotonic())
        theirs = meter.sample([], time.monotonic())
        ours = meter.sample([pid], time.monotonic())
    assert theirs is not None and ours is not None
    assert theirs.others_memory - ours.others_memory > 400 * 2**20


def says(proc: Path, busy: int, idle: int) -> None:
    (proc / "stat").write_text(
        f"cpu  9 9 9 9 9 9 9 9\ncpu0 {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu1 9999 0 0 1 0 0 0 0 0 0\n"
    )
    (proc / "meminfo").write_text("MemTotal:     1000 kB\nMemAvailable: 250 kB\n")


def test_processors_that_we_may_not_use_do_not_count(tmp_path: Path) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    says(tmp_path, 100, 100)
    meter = MachineMeter(tmp_path, {0})
    assert meter.sample([], 10.0) is None, "no time has passed"
    says(tmp_path, 100 + hertz, 100 + hertz)
    assert meter.sample([], 12.0) == MachineUse(0.5, 0.75, 0.5, 750.0 * 1024)
    says(tmp_path, 10, 10)
    found = meter.sample([], 14.0)
    assert found is not None and (found.cpu_use, found.others_cores) == (0.0, 0.0), "a counter went back"


def test_a_kernel_that_does_not_tell_is_not_guessed_at(tmp_path: Path) -> None:
    meter = MachineMeter(tmp_path, {0})
    assert [meter.sample([1], float(at)) for at in range(3)] == [None] * 3
