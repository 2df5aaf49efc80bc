"""CPU limits on real processes: by a control group where one can be made, and by the substitute everywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.resources.limits import ControlGroup, CpuLimiter, StopAndGo, for_launch, in_pod
from sidecar.resources.usage import UsageMeter

BUSY = "import os\nif os.fork():\n  import time; time.sleep(600)\nwhile True: pass"
SELF = Path("/proc/self/cgroup")


@pytest.fixture
def busy() -> Iterator[int]:
    """A trainer that leads a group; its only work is done by a child."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
    time.sleep(0.2)
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cores(pid: int, seconds: float = 2.0) -> float:
    meter = UsageMeter(cgroups=Path("/nowhere"))
    meter.sample(pid, time.monotonic())
    time.sleep(seconds)
    return meter.sample(pid, time.monotonic()).cpu_cores or 0.0


def free(pid: int) -> bool:
    """Sooner or later it gets more than it was held to, however busy this machine is."""
    limit = time.monotonic() + 60
    while cores(pid, 0.5) < 0.35:
        assert time.monotonic() < limit
    return True


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def group_or_skip() -> ControlGroup:
    group = ControlGroup(f"test-{os.getpid()}")
    try:
        group.hold(os.getpid(), 100.0, None)
    except OSError as why:
        pytest.skip(f"no control group can be made here: {why}")
    group.lift()
    return group


def test_a_control_group_holds_a_trainer_and_its_children_and_lets_them_go(busy: int) -> None:
    group = group_or_skip()
    limiter = CpuLimiter([group, StopAndGo()])
    assert limiter.hold(busy, 0.2) == group.name
    assert cores(busy) < 0.3
    assert limiter.hold(busy, None) == ""
    assert free(busy)


def test_where_no_group_can_be_made_the_trainer_is_stopped_and_continued(busy: int) -> None:
    limiter = CpuLimiter([Refusing(), StopAndGo()])
    assert limiter.hold(busy, 0.2) == "stop and go"
    assert cores(busy) < 0.35
    limiter.hold(busy, None)
    assert free(busy)
    assert not stopped(busy)


class Refusing:
    name = "refusing"

    def hold(self, pid: int, cores: float, used: float | None) -> None:
        raise PermissionError("not here")

    def lift(self) -> None:
        return


def test_more_threads_get_a_smaller_part_of_the_time() -> None:
    substitute = StopAndGo()
    leader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        substitute.hold(leader.pid, 1.0, None)
        assert substitute.share == 1.0
        substitute.hold(leader.pid, 1.0, 4.0)
        assert substitute.share == 0.25
        substitute.hold(leader.pid, 1.0, 1.0)
        assert substitute.share == 0.25
    finally:
        substitute.lift()
        leader.kill()
        leader.wait()


def test_a_trainer_that_a_killed_sidecar_left_stopped_goes_on(busy: int) -> None:
    os.killpg(busy, signal.SIGSTOP)
    CpuLimiter([StopAndGo()]).hold(busy, None)
    time.sleep(0.1)
    assert not stopped(busy)


def test_a_group_that_a_killed_sidecar_left_is_lifted_first_thing(busy: int) -> None:
    group = group_or_skip()
    group.hold(busy, 0.1, None)
    CpuLimiter([ControlGroup(f"test-{os.getpid()}")])
    assert free(busy)
    assert not (group.folder).exists()


def test_a_trainer_that_has_gone_is_no_error() -> None:
    gone = subprocess.Popen(["true"], start_new_session=True)
    gone.wait()
    limiter = CpuLimiter([ControlGroup(f"test-{os.getpid()}"), StopAndGo()])
    limiter.hold(gone.pid, 0.5)
    limiter.hold(None, None)


@pytest.mark.parametrize(
    ("lines", "folder", "version"),
    [
        ("3:cpu,cpuacct:/a\n0::/b\n", "cpu,cpuacct/a", 1),
        ("1:cpu:/\n", "cpu", 1),
        ("0::/pod/c1\n", "pod/c1", 2),
        ("", "", 2),
    ],
)
def test_our_own_group_is_found_in_both_versions(tmp_path: Path, lines: str, folder: str, version: int) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(lines)
    group = ControlGroup("x", proc=tmp_path, cgroups=tmp_path / "fs")
    assert (group.folder, group.name) == (tmp_path / "fs" / folder / "reshape-x", f"control group v{version}")


class RefusingOnce(Refusing):
    name = "refusing once"
    asked = False

    def hold(self, pid: int, cores: float, used: float | None) -> None:
        if not self.asked:
            self.asked = True
            raise PermissionError("not yet")


def test_nobody_is_held_in_two_ways_at_once(busy: int) -> None:
    substitute = StopAndGo()
    limiter = CpuLimiter([RefusingOnce(), substitute])
    assert limiter.hold(busy, 0.2) == "stop and go"
    assert limiter.hold(busy, 0.2) == "refusing once"
    assert substitute._thread is None
    limiter.hold(busy, None)


def test_in_a_pod_nobody_but_its_kubelet_holds_the_trainer(busy: int) -> None:
    assert for_launch("launch", pod=True).hold(busy, 0.1, 1.0) == ""


@pytest.mark.parametrize(
    ("quota", "told", "said"),
    [
        (None, 0.5, (None, "")),
        (None, None, (None, "")),
        (0.5, 0.5, (0.5, "pod resize")),
        (0.01, 0.004, (0.01, "pod resize")),
        (2.0, 0.5, (2.0, "its pod")),
        (2.0, None, (2.0, "its pod")),
    ],
)
def test_in_a_pod_the_limit_in_force_is_the_one_of_its_container(
    quota: float | None, told: float | None, said: tuple[float | None, str]
) -> None:
    assert in_pod(quota, told) == said
