"""`reshape up` on real GPUs: one with a problem is faulty at the coordinator until it has none."""

from __future__ import annotations

import os
import pwd
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.adapters.clock import SystemClock
from coordinator.stores.bootstrap import FoundNode
from coordinator.telemetry.node_reports import NodeReports
from reshape.services.local_gpus import LocalInventory, watch_gpus
from sidecar import gpu_locks
from sidecar.protocol import NodeGpu
from sidecar.resources.agent import NvmlInventory
from sidecar.resources.gpu_health import XidWatch
from sidecar.resources.gpus import NvmlProbe, list_gpus
from tests.fakes.fake_pynvml import FakeGpu, FakeNvml
from tests.fakes.shim_client import running_shim, trainer


def test_each_change_of_the_inventory_is_told_once() -> None:
    reports, end = NodeReports(SystemClock(), 5.0), threading.Event()
    good, bad = [NodeGpu("GPU-1", "H100")], [NodeGpu("GPU-1", "H100", healthy=False, problem="Xid 79")]
    seen, told = [good, good, bad, bad, good], list[list[NodeGpu]]()

    def look() -> list[NodeGpu]:
        if len(seen) == 1:
            end.set()
        return seen.pop(0)

    def changed() -> None:
        for name, report in reports.changed().items():
            assert (name, report.cores, report.memory) == ("here", 8.0, 1024)
            told.append(report.gpus)
            reports.written(name, report)

    watch_gpus(FoundNode("here", (), 8.0, 1024.0), reports, changed, 0.0, end, look)
    assert told == [good, bad, good]
    assert not seen


def test_an_error_costs_one_report_and_not_the_watch() -> None:
    reports, end = NodeReports(SystemClock(), 5.0), threading.Event()
    looks = iter([OSError(24, "Too many open files"), RuntimeError("?"), [NodeGpu("GPU-1", "H100")]])

    def look() -> list[NodeGpu]:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        end.set()
        return found

    watch_gpus(FoundNode("here", (), 8.0, 1024.0), reports, lambda: None, 0.0, end, look)
    assert reports.changed()["here"].gpus == [NodeGpu("GPU-1", "H100")]


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is not of ours."""
    process = subprocess.Popen(["sleep", "3600"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    one = FakeGpu(f"GPU-{uuid.uuid4()}")
    yield one
    Path(gpu_locks.path_of(one.uuid)).unlink(missing_ok=True)


def watched(state: Path, gpu: FakeGpu) -> NodeGpu:
    nvml = FakeNvml([gpu])
    look = NvmlInventory(lambda: list_gpus(nvml), NvmlProbe(nvml), XidWatch(nvml))
    (found,) = LocalInventory(state, look, NvmlProbe(nvml))()
    return found


def test_a_gpu_that_somebody_computes_on_is_not_given_away_until_that_has_ended(
    tmp_path: Path, gpu: FakeGpu, stranger: int
) -> None:
    assert watched(tmp_path, gpu).healthy
    gpu.pids.append(stranger)
    found = watched(tmp_path, gpu)
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert not found.healthy
    assert found.problem == f"used by process {stranger} (sleep) of {me} with 3.0 GiB; free once that has ended"
    gpu.pids.clear()
    assert watched(tmp_path, gpu) == NodeGpu(gpu.uuid, "V100", 16 << 30)


def test_what_others_do_beside_a_training_of_ours_is_shown_and_the_gpu_stays_its_own(
    tmp_path: Path, gpu: FakeGpu, stranger: int
) -> None:
    with running_shim(tmp_path / "jobs" / "one-l1", trainer("counts"), gpus="nvml") as shim:
        status = shim.client.start(1, [gpu.uuid])["status"]
        gpu.pids[:] = [status["trainer_pid"]]
        assert watched(tmp_path, gpu) == NodeGpu(gpu.uuid, "V100", 16 << 30)
        gpu.pids.append(stranger)
        found = watched(tmp_path, gpu)
        assert found.healthy and found.others.startswith(f"also used by process {stranger} (sleep) of ")
        beside = watched(tmp_path / "another state folder", gpu)  # of another `reshape up`, both are strangers
        assert not beside.healthy and f"process {status['trainer_pid']} " in beside.problem


def test_a_gpu_that_another_folders_shim_has_locked_is_not_given_away_before_it_computes(
    tmp_path: Path, gpu: FakeGpu
) -> None:
    with running_shim(tmp_path / "jobs" / "one-l1", trainer("counts"), gpus="nvml") as shim:
        shim.client.start(1, [gpu.uuid])
        beside = watched(tmp_path / "another state folder", gpu)
        assert beside.problem.startswith(f"used by process {shim.process.pid} (")


def test_processes_of_other_containers_are_not_judged(tmp_path: Path, gpu: FakeGpu) -> None:
    gpu.pids.append(2**22 + 1)  # more than any process here can have
    assert watched(tmp_path, gpu).healthy
