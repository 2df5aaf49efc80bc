"""The state of a reshape in place stays on the GPU: what is held, what is lost when one of its processes is killed.

The driver's library is a fake one (`tests/fakes/cuda`), all processes are real. What a state is on a real GPU is shown
by `tests/e2e/test_real_gpus.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reshape_hooks import plain
from tests.fakes import cuda
from tests.fakes.shim_client import boottime, running_shim, trainer
from tests.faults.test_shim_memory import Training
from tests.patience import eventually

ROOT = Path(__file__).resolve().parents[2]
BULK = 3_000_000  # bytes


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cuda.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(autouse=True)
def use_driver(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))


class OnGpu(Training):
    """A shim on GPUs with a trainer whose state is on the first of them."""

    def __init__(self, shim: Any, folder: Path) -> None:
        super().__init__(shim, folder)
        mark = uuid.uuid4().hex[:8]  # its lock is of the whole machine
        self.gpus = [f"GPU-{mark}-0", f"GPU-{mark}-1"]

    def start_on(self, generation: int, count: int, checkpoint: str | None = None, **more: Any) -> dict[str, Any]:
        return self.shim.client.start(generation, self.gpus[:count], checkpoint=checkpoint, **more)

    def begins(self, generation: int) -> tuple[int, str]:
        """At which step a generation began, and where its state came from, once it has trained on."""
        pattern = rf"begins={generation} at=(\d+) from=(\w+)\n(?:step=.*\n){{3}}"
        found = eventually(lambda: re.search(pattern, self.output()), f"generation {generation} trains")
        return int(found[1]), found[2]

    def stop_for(self, generation: int, count: int, **more: Any) -> dict[str, Any]:
        return self.stop(generation, gpu_ids=self.gpus[:count], **more)

    def hold(self) -> int:
        """Train a first generation on one GPU and stop it in place; return its last step, whose state is held."""
        assert self.start_on(1, 1)["ok"]
        self.begins(1)
        assert self.stop_for(2, 1)["on_gpu"].startswith("state stays")
        return self.last_step()

    def last_step(self) -> int:
        return max(self.steps(), default=0)

    def holder(self) -> int:
        (found,) = eventually(self.writers, "a process holds the state")
        return found


@contextlib.contextmanager
def training(folder: Path, env: dict[str, str] | None = None, **launch: Any) -> Iterator[OnGpu]:
    folder.mkdir(exist_ok=True)
    disk = folder / "checkpoints"
    disk.mkdir(exist_ok=True)
    env = {"RESHAPE_CHECKPOINTS": str(disk), "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "", **(env or {})}
    command = trainer("held_chain", str(BULK))
    with running_shim(folder, command, env=env, gpus="nvml", **{"workdir": str(folder), **launch}) as shim:
        yield OnGpu(shim, folder)


def test_a_state_stays_on_the_gpu_and_comes_to_the_disk(tmp_path: Path) -> None:
    with training(tmp_path) as job:
        assert job.start_on(1, 2)["ok"]
        assert job.begins(1) == (0, "nowhere")
        status = job.stop_for(2, 1)
        assert status["on_gpu"].startswith(f"state stays on GPU {job.gpus[0]} (")
        last = job.last_step()
        assert job.start_on(3, 1, f"g1-s{last}")["ok"]
        assert job.begins(3) == (last, "GPU")
        eventually(lambda: job.saved() == f"g1-s{last}", "it is on the disk")
        eventually(lambda: not job.writers(), "the holder has ended")
        eventually(lambda: job.shim.client.status()["holder"] is None, "the shim knows that")
        assert job.shim.client.status()["copy_lost"] is None
        assert job.done_once()
        assert job.stop_for(4, 2)["on_gpu"].startswith("state stays")  # and once more
        last = job.last_step()
        assert job.start_on(5, 2, f"g3-s{last}")["ok"]
        assert job.begins(5) == (last, "GPU")
        assert job.done_once()


def test_a_state_stays_where_only_the_job_knows_its_drivers_library(
    tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    with training(tmp_path, env={"LD_LIBRARY_PATH": str(driver)}) as run:
        run.hold()


def test_the_first_gpu_must_stay_for_the_state_to_stay(tmp_path: Path) -> None:
    with training(tmp_path) as job:
        assert job.start_on(1, 2)["ok"]
        job.begins(1)
        status = job.stop(2, gpu_ids=job.gpus[1:])
        assert (status["on_gpu"], status["holder"]) == ("", None)
        assert status["in_memory"]["name"] == f"g1-s{job.last_step()}", "it is in memory as without a GPU"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"FAKE_GPU_FREE": str(BULK)}, "MiB would have to be free on the GPU"),
        ({"FAKE_GPU_FAULT": "cuInit"}, "cuInit failed with CUDA error 999"),
        ({"FAKE_GPU_FAULT": "cuMemAlloc_v2"}, "cuMemAlloc_v2 failed with CUDA error 2 (out of memory)"),
        ({"FAKE_GPU_FAULT": "cuIpcGetMemHandle"}, "cuIpcGetMemHandle failed with CUDA error 999"),
        ({"FAKE_GPU_FAULT": "cuIpcOpenMemHandle_v2"}, ""),  # the trainer itself sees it
        ({"FAKE_GPU_FAULT": "cuMemcpyAsync"}, ""),
    ],
)
def test_what_cannot_be_held_is_saved_as_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, str], said: str
) -> None:
    for name, value in fault.items():
        monkeypatch.setenv(name, value)
    with training(tmp_path) as job:
        assert job.start_on(1, 1)["ok"]
        job.begins(1)
        status = job.stop_for(2, 1)
        assert said in status["on_gpu"]
        assert "stays on GPU" not in status["on_gpu"]
        last = job.last_step()
        assert job.start_on(3, 1, f"g1-s{last}")["ok"]
        assert job.begins(3) == (last, "disk")
        assert job.done_once()
        eventually(lambda: not job.writers(), "nothing of the GPU is held")


@pytest.mark.parametrize("point", ["hand-over", "save", "exit"])
def test_a_trainer_that_is_killed_as_it_hands_its_state_over(tmp_path: Path, point: str) -> None:
    """Before it is saved the last checkpoint counts, after that the state; what it had reserved is free again."""
    with training(tmp_path) as job:
        assert job.start_on(1, 1)["ok"]
        job.begins(1)
        before = job.stop(2, in_place=False) and job.last_step()
        assert job.start_on(3, 1)["ok"]
        job.begins(3)
        (tmp_path / f"kill-{point}").touch()
        job.shim.client.stop(4, in_place=True, gpu_ids=job.gpus[:1])
        assert job.shim.client.wait("exited")["exit_code"] == -signal.SIGKILL
        saved = point == "exit"
        eventually(lambda: saved or not job.writers(), "nothing of the GPU is held")
        last = job.last_step()
        assert job.start_on(5, 1)["ok"]
        at, place = job.begins(5)
        assert (at, place) == ((last, "GPU") if saved else (before, "disk"))
        job.steps()  # each state is that of its step


@pytest.mark.parametrize("when", ["before the hand-over", "sealed", "loading"])
def test_a_holder_that_is_killed_loses_no_more_than_since_the_last_checkpoint(tmp_path: Path, when: str) -> None:
    with training(tmp_path) as job:
        assert job.start_on(1, 1)["ok"]
        job.begins(1)
        job.stop(2, in_place=False)
        before = job.last_step()
        assert job.start_on(3, 1)["ok"]
        job.begins(3)
        if when == "before the hand-over":
            (tmp_path / "hold-hand-over").touch()
            job.shim.client.stop(4, in_place=True, gpu_ids=job.gpus[:1])
            os.kill(job.holder(), signal.SIGKILL)
            (tmp_path / "hold-hand-over").unlink()
            job.shim.client.wait("exited")
        else:
            assert job.stop_for(4, 1)["on_gpu"].startswith("state stays")
        last = job.last_step()
        if when == "sealed":
            os.kill(job.holder(), signal.SIGKILL)
            eventually(lambda: job.shim.client.status()["holder"] is None, "the shim has seen it")
        if when == "loading":
            (tmp_path / "hold-load").touch()
        assert job.start_on(5, 1)["ok"]
        if when == "loading":
            eventually((tmp_path / "held-load").exists, "it has found the state and is about to load it")
            os.kill(job.holder(), signal.SIGKILL)
            eventually(lambda: job.shim.client.status()["holder"] is None, "the shim has seen it")
            (tmp_path / "hold-load").unlink()
            assert job.shim.client.wait("exited")["exit_code"] not in (0, plain.STOPPED), "it never begins without it"
            assert job.start_on(6, 1)["ok"]
        kept = when == "before the hand-over"
        assert job.begins(6 if when == "loading" else 5)[0] == (last if kept else before)
        told = job.shim.client.status()["copy_lost"]
        assert (told and told["step"]) == (None if kept else last), "the coordinator must know that it was a fault"
        job.steps()


def test_a_trainer_that_is_killed_as_it_loads_is_started_from_the_gpu_again(tmp_path: Path) -> None:
    with training(tmp_path) as job:
        last = job.hold()
        (tmp_path / "kill-load").touch()
        assert job.start_on(3, 1, f"g1-s{last}")["ok"]
        assert job.shim.client.wait("exited")["exit_code"] == -signal.SIGKILL
        assert job.start_on(5, 1, f"g1-s{last}")["ok"]
        assert job.begins(5) == (last, "GPU")
        assert job.done_once()


def test_a_state_whose_gpu_is_not_given_again_is_loaded_from_its_file(tmp_path: Path) -> None:
    with training(tmp_path) as job:
        last = job.hold()
        other = job.shim.client.start(3, job.gpus[1:], checkpoint=f"g1-s{last}", env={"FAKE_GPU_UUID": "x"})
        assert other["ok"]
        assert job.begins(3) == (last, "file")
        eventually(lambda: not job.writers(), "the first GPU is free")
        assert job.done_once()


def test_a_gpu_is_free_of_what_is_held_when_a_stop_that_is_not_in_place_is_told(tmp_path: Path) -> None:
    """The holder's state is written before, and its memory is gone with its process."""
    with training(tmp_path) as job:
        assert job.start_on(1, 1)["ok"]
        job.begins(1)
        (tmp_path / "hold-load").touch()
        assert job.stop_for(2, 1)["on_gpu"].startswith("state stays")
        last = job.last_step()
        assert job.start_on(3, 1, f"g1-s{last}")["ok"]
        eventually(lambda: job.writers(), "it is held as the next trainer has not loaded it")
        job.shim.client.stop(4, in_place=False)
        (tmp_path / "hold-load").unlink()
        status = job.shim.client.wait("exited")
        assert status["holder"] is None or not job.writers()
        assert job.saved() is not None
        assert int(str(job.saved()).rpartition("-s")[2]) >= last


def test_a_lease_that_ends_frees_the_gpu_though_no_trainer_runs(tmp_path: Path) -> None:
    with training(tmp_path, grace_s=0.5) as job:
        job.hold()
        os.kill(job.holder(), signal.SIGSTOP)  # a disk that hangs
        job.shim.client.ask("renew", deadline=boottime() + 0.2)
        eventually(lambda: job.shim.client.status()["holder"] is None, "the GPU is free at the end of the lease")
        assert not job.writers()


def test_the_end_of_a_launch_frees_the_gpu_and_keeps_the_state(tmp_path: Path) -> None:
    with training(tmp_path) as job:
        last = job.hold()
        job.shim.client.ask("end")
        eventually(lambda: not job.shim.left(), "all of it has ended")
        assert job.saved() == f"g1-s{last}"


def test_a_disk_that_refuses_gets_the_state_as_soon_as_it_can(tmp_path: Path) -> None:
    """Only the holder has it: it must not end before."""
    with training(tmp_path) as job:
        assert job.start_on(1, 1)["ok"]
        job.begins(1)
        (tmp_path / "hold-exit").touch()
        job.shim.client.stop(2, in_place=True, gpu_ids=job.gpus[:1])
        eventually(lambda: "in=memory" in job.output(), "the trainer has saved")
        job.disk.rename(tmp_path / "away")
        job.disk.touch()  # a file, in which nothing can be made
        (tmp_path / "hold-exit").unlink()
        assert job.shim.client.wait("exited")["on_gpu"].startswith("state stays")
        last = job.last_step()
        os.kill(job.holder(), signal.SIGTERM)  # as the shim says that nobody will come for it: it is written at once
        log = tmp_path / "stderr"
        eventually(lambda: "is on the GPU only, and is written again later" in log.read_text(), "a try has failed")
        job.disk.unlink()
        (tmp_path / "away").rename(job.disk)
        eventually(lambda: job.saved() == f"g1-s{last}", "it is on the disk")
        eventually(lambda: not job.writers(), "it is free")
        assert job.start_on(3, 1, f"g1-s{last}")["ok"]
        assert job.begins(3) == (last, "file")
        assert job.done_once()
