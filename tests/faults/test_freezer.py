"""A training that never saves is frozen and thawed by the driver's calls: real shims and processes, a fake driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar import freezer, gpu_locks
from tests.fakes.fake_driver import GIB, FakeDriver
from tests.fakes.shim_client import ShimProcess, running_shim, trainer
from tests.patience import eventually

Begin = Callable[..., ShimProcess]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    made = FakeDriver(tmp_path / "driver")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    for gpu in made.gpus:
        Path(gpu_locks.path_of(gpu)).unlink(missing_ok=True)


@pytest.fixture
def begin(driver: FakeDriver, tmp_path: Path) -> Iterator[Begin]:
    """Starts a shim whose trainer has made a step on the first GPU."""
    running = []

    def started(*arguments: str, gpus: list[str] | None = None, **launch: Any) -> ShimProcess:
        command = trainer("on_gpu", *arguments)
        context = running_shim(tmp_path / f"shim-{len(running)}", command, **{"gpus": "nvml", **launch})
        running.append(context)
        shim = context.__enter__()
        shim.client.start(1, gpus or driver.gpus[:1], lease_deadline=1e15)
        eventually(lambda: steps(shim) > 0, "a step")
        return shim

    yield started
    for context in running:
        context.__exit__(None, None, None)


def steps(shim: ShimProcess) -> int:
    return shim.output.read_text().count("step=") if shim.output.exists() else 0


def freeze(shim: ShimProcess, generation: int = 2, **more: Any) -> dict[str, Any]:
    """The status once the command to freeze has been carried out, or has not."""
    command = f"freeze-{generation}-{len(shim.client.events)}"
    answer = shim.client.stop(generation, freeze=True, command_id=command, **more)
    assert answer["ok"], answer

    def done() -> dict[str, Any] | None:
        status = shim.client.status()
        return status if command in (status["command_id"], status["unfrozen_by"]) else None

    found = eventually(done, "the end of the freeze")
    assert found is not None
    return found


def thaw(shim: ShimProcess, generation: int, gpu: str) -> dict[str, Any]:
    """The status once the command to thaw has been carried out, or has not."""
    assert shim.client.start(generation, [gpu], lease_deadline=1e15)["ok"]

    def done() -> dict[str, Any] | None:
        status = shim.client.status()
        return status if status["trainer"] in ("running", "frozen", "exited") else None

    found = eventually(done, "the end of the thaw")
    assert found is not None
    return found


def test_it_is_frozen_without_its_gpu_and_goes_on_where_it_was_on_another_one(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    assert shim.client.status()["freezes"] is True
    pid = shim.client.status()["trainer_pid"]
    status = freeze(shim)
    assert (status["trainer"], status["trainer_pid"], status["gpu_ids"]) == ("frozen", pid, [])
    assert (status["generation"], status["stop_asked"], status["unfrozen"]) == (2, False, "")
    assert (driver.state(pid), driver.held(pid), status["lease_deadline"]) == (2, "", 0)
    made = steps(shim)
    lock = gpu_locks.take_lock(driver.gpus[0])
    assert lock is not None, "others of the machine may use the GPU"
    os.close(lock)
    assert steps(shim) == made
    status = thaw(shim, 3, driver.gpus[1])
    assert (status["trainer"], status["trainer_pid"], status["gpu_ids"]) == ("running", pid, [driver.gpus[1]])
    assert (driver.state(pid), driver.held(pid)) == (0, driver.gpus[1])
    assert gpu_locks.take_lock(driver.gpus[1]) is None
    eventually(lambda: steps(shim) > made, "the next step")
    numbers = [int(line.partition("=")[2]) for line in shim.output.read_text().split()]
    assert numbers == list(range(1, len(numbers) + 1)), "no step is lost, and none is made twice"
    assert freeze(shim, 4)["trainer"] == "frozen"
    assert thaw(shim, 5, driver.gpus[0])["gpu_ids"] == [driver.gpus[0]]


def test_a_frozen_trainer_outlives_its_lease(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    freeze(shim)
    assert shim.client.ask("renew", deadline=1.0)["status"]["lease_deadline"] == 0
    assert thaw(shim, 3, driver.gpus[0])["trainer"] == "running"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--twice",), "2 of its processes have a GPU open; the driver freezes a training with one process on one GPU"),
        (("--nccl",), "it has set up NCCL; "),
    ],
)
def test_what_cannot_be_frozen_is_not_touched(
    driver: FakeDriver, begin: Begin, arguments: tuple[str, ...], said: str
) -> None:
    shim = begin(*arguments)
    eventually(lambda: len(list(driver.folder.glob("*.state"))) == (2 if "--twice" in arguments else 1), "all run")
    driver.put("fail.Lock", -1)  # whoever calls it hangs
    status = freeze(shim)
    assert status["unfrozen"].startswith(said)
    assert (status["trainer"], status["generation"], status["gpu_ids"]) == ("running", 1, driver.gpus[:1])
    goes_on(shim)


def test_more_than_one_gpu_and_a_part_of_one_are_refused(driver: FakeDriver, begin: Begin) -> None:
    assert freeze(begin(gpus=driver.gpus[:2]))["unfrozen"].startswith("it has 2 GPUs; the driver freezes")
    part = f"MIG-{driver.gpus[0][4:]}"
    assert freeze(begin(gpus=[part]))["unfrozen"].startswith("it has a part of a GPU (MIG); ")
    Path(gpu_locks.path_of(part)).unlink()


def test_a_state_that_does_not_fit_into_memory_stays_on_its_gpu(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    pid = shim.client.status()["trainer_pid"]
    driver.put(f"{pid}.held", f"{driver.gpus[0]} {(80 << 40)}")
    driver.put(f"{driver.gpus[0]}.free", -(80 << 40))
    said = freeze(shim)["unfrozen"]
    assert said.startswith("it has ")
    assert said.endswith(" of memory are free here to keep that")
    goes_on(shim)


@pytest.mark.parametrize(
    ("verb", "code", "said"),
    [
        ("Lock", 600, "what it computes did not come to an end within 10 s (CUDA's error 600)"),
        ("Checkpoint", 801, "the driver does not freeze it (CUDA's error 801), as it does not where memory is managed"),
    ],
)
def test_what_the_driver_refuses_trains_on(driver: FakeDriver, begin: Begin, verb: str, code: int, said: str) -> None:
    shim = begin()
    driver.put(f"fail.{verb}", code)
    assert freeze(shim)["unfrozen"].startswith(said)
    goes_on(shim)
    driver.take_away(f"fail.{verb}")
    assert freeze(shim)["trainer"] == "frozen", "the next command of the same generation is no repeated one"


def freeze_that_hangs(shim: ShimProcess, driver: FakeDriver) -> int:
    """Begin a freeze in which the driver hangs; return the trainer's pid once it is locked."""
    driver.put("fail.Checkpoint", -1)
    shim.client.stop(2, freeze=True, command_id="freeze")
    pid = int(shim.client.status()["trainer_pid"])
    eventually(lambda: driver.state(pid) == 1, "it is locked")
    return pid


def goes_on(shim: ShimProcess) -> None:
    made = steps(shim)
    eventually(lambda: steps(shim) > made, "it trains on")


def test_a_gpu_that_is_not_given_back_is_kept(
    driver: FakeDriver, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = begin()
    driver.put("fail.GiveBack", 1)
    status = freeze(shim)
    assert status["unfrozen"] == "the driver did not give its GPU back"
    assert (status["trainer"], status["gpu_ids"]) == ("running", driver.gpus[:1])
    goes_on(shim)


def test_a_driver_that_hangs_blocks_nobody_and_what_its_caller_left_goes_on(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    pid = freeze_that_hangs(shim, driver)
    assert shim.client.status()["trainer"] == "stopping"
    (caller,) = [one for one in callers(shim) if one]
    os.kill(caller, signal.SIGKILL)  # as the shim does after a while
    shim.client.wait("running")
    assert driver.state(pid) == 0
    goes_on(shim)


def test_a_stop_does_not_wait_for_a_driver_that_hangs(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    freeze_that_hangs(shim, driver)
    shim.client.stop(3, grace_s=0.2)
    shim.client.wait("exited")
    eventually(lambda: not callers(shim), "nobody calls the driver any more")


def test_freezes_wait_for_each_other_and_the_training_goes_on_meanwhile(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    other = eventually(lambda: gpu_locks.take_lock(freezer.ONE_AT_A_TIME), "no other test freezes")
    try:
        shim.client.stop(2, freeze=True, command_id="freeze")
        eventually(lambda: callers(shim), "it begins")
        goes_on(shim)
        assert shim.client.status()["trainer"] == "stopping"
    finally:
        os.close(other)
    eventually(lambda: shim.client.status()["trainer"] == "frozen", "it is frozen")


def test_memory_that_another_freeze_has_taken_meanwhile_does_not_count(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    pid = shim.client.status()["trainer_pid"]
    turn = gpu_locks.open_unlocked(freezer.ONE_AT_A_TIME)
    free = freezer.available_bytes()
    given = {"pids": [pid], "gpu": driver.gpus[0], "room": 100 * GIB, "available": free + 100 * GIB, "turn": turn}
    command = [sys.executable, "-I", "-S", freezer.__file__, "freeze", json.dumps(given)]
    told = subprocess.run(command, pass_fds=[turn], capture_output=True, text=True, check=True).stdout
    os.close(turn)
    assert json.loads(told)["why"].endswith(" of memory are free here to keep that")
    goes_on(shim)


def callers(shim: ShimProcess) -> list[int]:
    """The processes that call the driver for this shim."""
    return [pid for pid in shim.left() if b"freezer.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_freeze_whose_caller_died_after_it_is_told_all_the_same(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    driver.put("fail.GiveBack", -1)
    shim.client.stop(2, freeze=True, command_id="freeze")
    pid = shim.client.status()["trainer_pid"]
    eventually(lambda: driver.state(pid) == 2, "it is frozen")
    (driver.folder / f"{pid}.held").unlink()
    (caller,) = callers(shim)
    (driver.folder / f"{pid}.kept").write_text(f"{driver.gpus[0]} {2 << 30}\n")
    os.kill(caller, signal.SIGKILL)
    assert shim.client.wait("frozen")["generation"] == 2


@pytest.mark.parametrize(
    ("gpu", "free", "said"),
    [
        (0, GIB, " are free on GPU "),
        (2, 80 * GIB, " is a A100, and it was frozen on a H100"),
    ],
)
def test_it_stays_frozen_rather_than_to_be_restored_where_it_does_not_fit(
    driver: FakeDriver, begin: Begin, gpu: int, free: int, said: str
) -> None:
    shim = begin()
    freeze(shim)
    driver.put(f"{driver.gpus[gpu]}.free", free)
    driver.put("fail.Restore", -1)  # whoever calls it hangs
    status = thaw(shim, 3, driver.gpus[gpu])
    assert said in status["unfrozen"]
    assert (status["trainer"], status["gpu_ids"], status["command_id"]) == ("frozen", [], "j:3:start")
    driver.put(f"{driver.gpus[gpu]}.free", 80 * GIB)
    driver.take_away("fail.Restore")
    assert thaw(shim, 4, driver.gpus[1])["trainer"] == "running"


def test_a_gpu_that_another_training_has_locked_is_not_taken(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    freeze(shim)
    other = begin()
    status = thaw(shim, 3, driver.gpus[0])
    assert status["trainer"] == "frozen"
    assert status["unfrozen"].startswith(f"GPU {driver.gpus[0]} is used by process {other.process.pid} (")


def test_a_frozen_trainer_that_dies_is_told_with_what_that_means(driver: FakeDriver, begin: Begin) -> None:
    shim = begin()
    os.kill(freeze(shim)["trainer_pid"], signal.SIGKILL)
    status = shim.client.wait("exited")
    assert (status["exit_code"], status["exit_note"]) == (-9, freezer.LOST)


def test_a_frozen_trainer_ends_with_its_launch_at_once(driver: FakeDriver, begin: Begin) -> None:
    shim = begin(grace_s=1e6)
    freeze(shim)
    shim.client.ask("end")
    assert shim.process.wait(60) == 0
    assert shim.left() == []


def test_without_the_calls_the_driver_is_called_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = FakeDriver(tmp_path / "old", old=True)
    for name, value in old.environment.items():
        monkeypatch.setenv(name, value)
    with running_shim(tmp_path / "shim", trainer("on_gpu"), gpus="nvml") as shim:
        shim.client.start(1, old.gpus[:1])
        eventually(lambda: steps(shim) > 0, "a step")
        assert freeze(shim)["unfrozen"] == "the NVIDIA driver cannot freeze trainings; 570 is the first that can"
        goes_on(shim)
    Path(gpu_locks.path_of(old.gpus[0])).unlink()


def test_on_emulated_gpus_nothing_is_stopped(tmp_path: Path) -> None:
    with running_shim(tmp_path, trainer("counts"), gpus="emulated") as shim:
        shim.client.start(1, ["A"])
        assert shim.client.status()["freezes"] is False
        answer = shim.client.stop(2, freeze=True)
        assert answer["error"] == "it cannot be frozen: only on a machine's own GPUs, and not in a pod"
        assert shim.client.wait("running")["generation"] == 1
