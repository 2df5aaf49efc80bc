"""`reshape up` on a fake driver: a training that never saves lets another one have the only GPU, and goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar import gpu_locks
from tests.e2e.up import TRAINERS, Up, View, wait_for
from tests.fakes.fake_driver import FakeDriver


@contextlib.contextmanager
def driver_of(folder: Path, gpus: int) -> Iterator[FakeDriver]:
    """Give a fake driver that shows so many GPUs, none of which is locked afterwards."""
    made = FakeDriver(folder / "driver")
    made.pynvml(folder / "modules", gpus)
    yield made
    for gpu in made.gpus:
        Path(gpu_locks.path_of(gpu)).unlink(missing_ok=True)


@contextlib.contextmanager
def up_on(driver: FakeDriver, folder: Path, **more: str) -> Iterator[Up]:
    """Run `reshape up` on this driver. `more`: environment."""
    modules = str(folder / "modules")
    given = {**driver.environment, "PYTHONPATH": modules, "TEST_MODULES": modules, **more}
    started = Up(folder / "state", (), program="tests.fakes.up_with_modules", **given)
    try:
        started.start()
        yield started
    finally:
        started.clear()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    with driver_of(tmp_path, gpus=1) as made:
        yield made


@pytest.fixture
def up(tmp_path: Path, driver: FakeDriver) -> Iterator[Up]:
    with up_on(driver, tmp_path) as started:
        yield started


def on_gpu(driver: FakeDriver, job_id: str, *arguments: str, **more: object) -> View:
    command = [sys.executable, str(TRAINERS / "on_gpu.py"), *arguments]
    fixed = {"job_id": job_id, "state": "submitted", "command": command, "optional_num_gpus": [1]}
    return {**fixed, "env": {"FAKE_CUDA": str(driver.folder)}, **more}


def steps(up: Up, job_id: str) -> list[int]:
    """The steps that a job has printed."""
    lines = up.client.output(job_id).splitlines()
    return [int(line.partition("=")[2]) for line in lines if line.startswith("step=")]


def pid_of(up: Up, job_id: str) -> int:
    return int(wait_for(lambda: up.job(job_id).get("trainer_pid"), what="its process is known"))


def test_it_is_suspended_and_resumed_though_it_never_saves(up: Up, driver: FakeDriver) -> None:
    up.client.submit(on_gpu(driver, "steady", freeze=True))
    trains = up.until("steady", "running")
    wait_for(lambda: steps(up, "steady"), what="a step")
    pid = pid_of(up, "steady")
    up.client.submit(on_gpu(driver, "short", "--steps", "30"))
    up.client.suspend("steady")
    up.until("short", "completed")
    view = up.job("steady")
    assert (view["suspended"], view["num_gpus"]) == (True, 0)
    assert driver.state(pid) == 2
    made = steps(up, "steady")
    up.client.resume("steady")
    again = up.until("steady", "running")
    assert (pid_of(up, "steady"), again["gpu_ids"]) == (pid, trains["gpu_ids"])
    wait_for(lambda: len(steps(up, "steady")) > len(made) + 5, what="further steps")
    assert (numbers := steps(up, "steady")) == list(range(1, len(numbers) + 1)), "none is lost, and none made twice"


def test_a_frozen_training_outlives_the_coordinator_and_is_cancelled(up: Up, driver: FakeDriver) -> None:
    up.client.submit(on_gpu(driver, "steady", freeze=True))
    up.until("steady", "running")
    pid = pid_of(up, "steady")
    up.client.suspend("steady")
    wait_for(lambda: up.client.gpus()[0]["state"] == "idle", what="its GPU is free")
    up.kill()
    up.start()
    up.client.resume("steady")
    up.until("steady", "running")
    assert pid_of(up, "steady") == pid
    up.client.suspend("steady")
    wait_for(lambda: up.client.gpus()[0]["state"] == "idle", what="its GPU is free")
    up.client.cancel("steady")
    up.until("steady", "cancelled")
    assert not Path(f"/proc/{pid}").exists()
