"""CPU and memory of the trainer's processes, from files of the kernel's shape and from real ones."""

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

from sidecar.protocol import ShimStatus, Usage
from sidecar.resources.usage import UsageMeter, _stats_below, cpu_quota, process_tree
from tests.patience import patient

TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def put_process(proc: Path, pid: int, parent: int, ticks: int, pages: int, cgroup: str = "0::/\n") -> None:
    (proc / str(pid)).mkdir(parents=True, exist_ok=True)
    fields = ["S", parent, *[0] * 9, ticks, 0, 0, 0, *[0] * 6, pages, *[0] * 20]
    (proc / str(pid) / "stat").write_text(f"{pid} (a ) name) {' '.join(map(str, fields))}\n")
    (proc / str(pid) / "cgroup").write_text(cgroup)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    put_process(tmp_path / "proc", 10, 1, ticks=0, pages=5)
    put_process(tmp_path / "proc", 11, 10, ticks=0, pages=7)
    put_process(tmp_path / "proc", 12, 11, ticks=0, pages=1)
    put_process(tmp_path / "proc", 99, 1, ticks=0, pages=1000)
    put_process(tmp_path / "proc", 2, 1, ticks=0, pages=1)
    (tmp_path / "proc" / "self").symlink_to("2")
    (tmp_path / "proc" / "meminfo").write_text("")
    return tmp_path / "proc"


def test_the_whole_tree_counts_and_nothing_else(proc: Path) -> None:
    meter = UsageMeter(proc, proc / "none")
    assert meter.sample(10, 1.0).memory == 13 * PAGE
    for pid in (10, 11, 12, 99):
        put_process(proc, pid, {10: 1, 11: 10, 12: 11, 99: 1}[pid], ticks=TICK, pages=5)
    usage = meter.sample(10, 3.0)
    assert usage.cpu_cores == pytest.approx(1.5)


def test_the_first_sample_of_a_trainer_has_no_cores_yet(proc: Path) -> None:
    meter = UsageMeter(proc, proc / "none")
    assert meter.sample(10, 1.0).cpu_cores is None
    assert meter.sample(11, 2.0).cpu_cores is None
    assert meter.sample(11, 2.0).cpu_cores is None


def test_children_that_end_never_make_it_negative(proc: Path) -> None:
    put_process(proc, 11, 10, ticks=500 * TICK, pages=5)
    meter = UsageMeter(proc, proc / "none")
    meter.sample(10, 1.0)
    (proc / "11" / "stat").unlink()
    assert meter.sample(10, 2.0).cpu_cores == 0.0


def test_no_trainer_or_one_that_is_gone_uses_nothing_known(proc: Path) -> None:
    meter = UsageMeter(proc, proc / "none")
    assert meter.sample(None, 1.0) == meter.sample(4711, 1.0)
    assert meter.sample(None, 1.0).memory is None


def test_a_control_group_of_its_own_is_asked_first(proc: Path, tmp_path: Path) -> None:
    put_process(proc, 10, 1, 0, 5, cgroup="0::/pod/trainer\n")
    group = tmp_path / "groups" / "pod" / "trainer"
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 1\n")
    (group / "memory.current").write_text("5000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 2000\n")
    meter = UsageMeter(proc, tmp_path / "groups")
    assert meter.sample(10, 1.0).memory == 3000
    (group / "cpu.stat").write_text("usage_usec 4000000\n")
    assert meter.sample(10, 3.0).cpu_cores == pytest.approx(1.5)


def test_version_1_control_groups_are_understood(proc: Path, tmp_path: Path) -> None:
    put_process(proc, 10, 1, 0, 5, cgroup="4:memory:/t\n2:cpu,cpuacct:/t\n0::/\n")
    (proc / "2" / "cgroup").write_text("4:memory:/\n2:cpu,cpuacct:/\n0::/\n")
    for name, file, text in (
        ("cpuacct", "cpuacct.usage", "2000000000"),
        ("memory", "memory.usage_in_bytes", "700"),
        ("memory", "memory.stat", "total_inactive_file 100\n"),
    ):
        folder = tmp_path / "groups" / name / "t"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    assert UsageMeter(proc, tmp_path / "groups").sample(10, 1.0).memory == 600


def test_cores_are_never_the_difference_of_two_ways_of_counting(proc: Path, tmp_path: Path) -> None:
    """Somebody may put the trainer into a group of its own, whose counters begin at 0."""
    group = tmp_path / "groups" / "t"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000")
    meter = UsageMeter(proc, tmp_path / "groups")
    put_process(proc, 10, 1, ticks=50 * TICK, pages=5)
    meter.sample(10, 1.0)
    put_process(proc, 10, 1, ticks=51 * TICK, pages=5, cgroup="0::/t\n")
    for second, used in ((2.0, 500_000), (3.0, 1_000_000)):
        (group / "cpu.stat").write_text(f"usage_usec {used}\n")
        usage = meter.sample(10, second)
        assert usage.cpu_cores == (None if second == 2.0 else pytest.approx(0.5))
    put_process(proc, 10, 1, ticks=52 * TICK, pages=5)
    assert meter.sample(10, 4.0).cpu_cores is None


def test_a_shared_or_unreadable_control_group_is_not_taken_for_the_trainers(proc: Path, tmp_path: Path) -> None:
    put_process(proc, 10, 1, 0, 5, cgroup="0::/elsewhere\nnonsense\n")
    assert UsageMeter(proc, tmp_path / "groups").sample(10, 1.0).memory == 13 * PAGE


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    yield process
    os.killpg(process.pid, 9)
    process.wait()


def test_a_real_trainers_busy_child_is_seen(busy: subprocess.Popen[bytes]) -> None:
    meter, deadline, cores = UsageMeter(), time.monotonic() + patient(20), 0.0
    while cores <= 0.05 and time.monotonic() < deadline:
        usage = meter.sample(busy.pid, time.clock_gettime(time.CLOCK_BOOTTIME))
        cores = usage.cpu_cores or 0.0
        time.sleep(0.1)
    assert 0.05 < cores < 1.5 and usage.memory is not None and usage.memory > 1 << 20


def test_what_the_trainer_had_before_it_was_limited_still_counts(proc: Path, tmp_path: Path) -> None:
    """The group that holds it to a limit is only charged for what it takes from then on."""
    group = tmp_path / "groups" / "reshape-one-1"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000")
    (group / "cpu.stat").write_text("usage_usec 0\n")
    meter = UsageMeter(proc, tmp_path / "groups")
    put_process(proc, 10, 1, ticks=50 * TICK, pages=5)
    meter.sample(10, 1.0)
    put_process(proc, 10, 1, ticks=51 * TICK, pages=5, cgroup="0::/reshape-one-1\n")
    usage = meter.sample(10, 2.0)
    assert (usage.memory, usage.cpu_cores) == (13 * PAGE, pytest.approx(1.0))


def test_a_trainer_in_another_container_is_counted_by_its_shim_whatever_its_pid_means_here(proc: Path) -> None:
    put_process(proc, 10, 1, ticks=50 * TICK, pages=5)
    meter = UsageMeter(proc)
    assert meter.sample(10, 1.0, ShimStatus(cpu_s=4.0, memory=700)) == Usage(memory=700)
    assert meter.sample(10, 3.0, ShimStatus(cpu_s=7.0, memory=800)) == Usage(cpu_cores=1.5, memory=800)
    assert meter.sample(10, 4.0, ShimStatus()) == Usage(), "its kernel does not say"


def test_block_io_is_that_of_the_whole_tree_per_second(proc: Path) -> None:
    meter = UsageMeter(proc, proc / "none")
    for pid, read, written in ((10, 100, 0), (11, 50, 50), (99, 9, 9)):
        (proc / str(pid) / "io").write_text(f"rchar: 7\nread_bytes: {read}\nwrite_bytes: {written}\n")
    assert meter.sample(10, 1.0).block_io is None
    (proc / "11" / "io").write_text("read_bytes: 350\nwrite_bytes: 150\ncancelled_write_bytes: 5\n")
    assert meter.sample(10, 3.0).block_io == pytest.approx(200.0)


def test_block_io_that_nobody_may_read_is_not_known(proc: Path) -> None:
    meter = UsageMeter(proc, proc / "none")
    meter.sample(10, 1.0)
    assert meter.sample(10, 2.0) == Usage(cpu_cores=0.0, memory=13 * PAGE)


TRAFFIC = """Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 77777 1 0 0 0 0 0 0 77777 1 0 0 0 0 0 0
  eth0: {} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0
"""


@pytest.mark.parametrize(("network", "found"), [(True, 150.0), (False, None)])
def test_network_io_counts_where_it_is_the_pods_own(proc: Path, network: bool, found: float | None) -> None:
    (proc / "net").mkdir()
    (proc / "net" / "dev").write_text(TRAFFIC.format(1000, 500))
    meter = UsageMeter(proc, proc / "none", network=network)
    meter.sample(10, 1.0)
    (proc / "net" / "dev").write_text(TRAFFIC.format(1200, 600))
    assert meter.sample(10, 3.0).network_io == found


def test_block_io_in_another_container_is_what_its_shim_counted(proc: Path) -> None:
    meter = UsageMeter(proc, proc / "none")
    meter.sample(7, 1.0, ShimStatus(cpu_s=1.0, memory=5, block_io=100))
    assert meter.sample(7, 2.0, ShimStatus(cpu_s=1.5, memory=5, block_io=300)).block_io == 200.0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "20000\n", "cpu/cpu.cfs_period_us": "10000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_our_container_is_read_in_both_versions(
    tmp_path: Path, files: dict[str, str], cores: float | None
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == cores


def test_the_kernels_lists_of_children_name_the_same_processes_as_a_look_at_all() -> None:
    """Also the child of a child, and one that another thread than the first has started."""
    started: list[subprocess.Popen[bytes]] = []
    command = ["sh", "-c", "sleep 600 & echo; wait"]

    def start() -> None:
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        done.set()
        ends.wait()

    done, ends = threading.Event(), threading.Event()
    thread = threading.Thread(target=start)
    thread.start()
    try:
        done.wait()
        below = set(_stats_below(Path("/proc"), os.getpid()))
        assert {started[0].pid, os.getpid()} < below and len(below) >= 3
        assert below == process_tree(Path("/proc"), os.getpid())
    finally:
        ends.set()
        thread.join()
        for one in started:
            os.killpg(one.pid, signal.SIGKILL)
            one.communicate()
