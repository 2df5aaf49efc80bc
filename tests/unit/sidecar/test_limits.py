"""CPU limits on real processes: by a control group where one can be made, and by the substitute everywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.resources.limits import ControlGroup, CpuLimiter, StopAndGo, for_launch, in_pod
from sidecar.resources.usage import process_tree
from tests.patience import eventually

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


def groups(pid: int) -> set[str]:
    """The control groups of a process and its children, as the kernel names them."""
    return {Path(f"/proc/{one}/cgroup").read_text() for one in process_tree(Path("/proc"), pid)}


def quota(group: ControlGroup) -> float:
    """The cores that the kernel allows this group."""
    if (group.folder / "cpu.max").exists():
        allowed, period = (group.folder / "cpu.max").read_text().split()
    else:
        allowed, period = ((group.folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(allowed) / int(period)


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
    """The kernel is asked, since how much a process gets on a busy machine says nothing of its limit."""
    group, before = group_or_skip(), groups(busy)
    limiter = CpuLimiter([group, StopAndGo()])
    assert limiter.hold(busy, 0.2) == group.name
    assert quota(group) == pytest.approx(0.2)
    (inside,) = groups(busy)
    assert group.folder.name in inside
    assert limiter.hold(busy, None) == ""
    assert groups(busy) == before and not group.folder.exists()


def test_where_no_group_can_be_made_the_trainer_is_stopped_and_continued(busy: int) -> None:
    limiter = CpuLimiter([Refusing(), StopAndGo()])
    assert limiter.hold(busy, 0.2) == "stop and go"
    eventually(lambda: stopped(busy), "it is stopped for a part of the time")
    eventually(lambda: not stopped(busy), "and runs for the rest")
    limiter.hold(busy, None)
    assert not any(thread.name == "limit" for thread in threading.enumerate()), "no thread stops it again"
    eventually(lambda: not stopped(busy), "it goes on")


class Refusing:
    name = "refusing"

    def hold(self, pid: int, cores: float, used: float | None) -> None:
        raise PermissionError("not here")

    def lift(self) -> bool:
        return True


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
    eventually(lambda: not stopped(busy), "it goes on")


def test_a_group_that_a_killed_sidecar_left_is_lifted_first_thing(busy: int) -> None:
    group, before = group_or_skip(), groups(busy)
    group.hold(busy, 0.1, None)
    CpuLimiter([ControlGroup(f"test-{os.getpid()}")])
    assert groups(busy) == before and not group.folder.exists()


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


class Counting(Refusing):
    def __init__(self, lifts: list[bool]) -> None:
        self.asked, self.lifts = 0, lifts

    def hold(self, pid: int, cores: float, used: float | None) -> None:
        return

    def lift(self) -> bool:
        self.asked += 1
        return self.lifts.pop(0)


def test_a_limit_is_lifted_until_that_has_succeeded_and_then_left_alone(busy: int) -> None:
    mechanism = Counting([False, False, True, True])
    limiter = CpuLimiter([mechanism])
    for _ in range(5):
        limiter.hold(busy, None)
    assert mechanism.asked == 3, "the first time at its start"
    assert limiter.hold(busy, 0.5) == "refusing"
    for _ in range(5):
        limiter.hold(busy, None)
    assert mechanism.asked == 4


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
