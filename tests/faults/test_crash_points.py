"""`reshape up` killed with SIGKILL at every seam of a reshape, and started again (`reliability.md` 7, row 1).

Two real trainings on two emulated GPUs: `big` has both, `small` comes and gets one of them. The process ends
itself at the seam; the next one must bring both jobs to their end, and no GPU may ever have had two users.
What the trainings did is read from their own locks, never from the coordinator.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reshape.client import CoordinatorUnreachable
from reshape_hooks.locks import violations
from tests.e2e.up import TRAINERS, Up, running, wait_for

# In the order in which they come while `small` takes a GPU from `big`.
JOURNEY = ("claim", "book victim", "launch", "initialized", "stop", "grant", "occupy", "start", "running")
# After a step the store holds what it holds before the next one: one crash of the two is enough for each change.
SEAMS = [f"before:{step}" for step in JOURNEY] + [
    pytest.param(f"after:{step}", marks=pytest.mark.deep) for step in JOURNEY
]
ENDING = ("before:completed", "after:completed", "after:free", "after:put down", "before:close", "after:close")
GROWING = ("after:claim", "before:stop", "after:stop", "after:grant", "after:start", "after:running")


class Ground:
    """The two jobs: each trains until its file is there."""

    def __init__(self, up: Up, folder: Path) -> None:
        self.up, self.files = up, {name: folder / f"end-{name}" for name in ("big", "small")}

    def submit(self, name: str, counts: list[int]) -> None:
        command = [sys.executable, str(TRAINERS / "until_told.py"), str(self.files[name])]
        doc = {"job_id": name, "job_type": "digits-numpy", "command": command, "iterations": 100_000}
        self.up.client.submit({**doc, "optional_num_gpus": counts, "elastic": True})

    def tell(self, name: str) -> None:
        """Let a job end, and wait until it has."""
        self.files[name].touch()
        self.up.until(name, "completed")

    def big_trains_alone(self) -> None:
        self.submit("big", [1, 2])
        self.up.until("big", "running")
        self.trains("big", [2])

    def trains(self, name: str, shapes: list[int]) -> None:
        """Wait until a job has had just these numbers of GPUs, and has made steps on the last of them."""
        wait_for(lambda: self.up.shapes(name) == shapes, what=f"{name} on {shapes}, had {self.up.shapes(name)}")

    def small_ends_though_each_is_a_crash(self, seams: Sequence[str]) -> None:
        """Both train; small is told to end while nobody coordinates, and then each of `seams` kills in turn."""
        self.big_trains_alone()
        self.submit("small", [1])
        self.trains("small", [1])
        self.up.until("big", "running")
        self.up.stop()
        self.files["small"].touch()
        for seam in seams:
            self.die(seam)
        self.up.start()

    def die(self, failpoint: str) -> None:
        """Start with the failpoint, and wait until the process has ended itself there."""
        self.up.start(failpoint)
        wait_for(lambda: self.up.gone, what=f"{failpoint} is reached")
        assert self.up.process.returncode == -signal.SIGKILL

    def nothing_was_shared_or_lost(self) -> None:
        assert self.up.violations() == []
        for name in self.files:
            steps = self.up.steps(name)
            assert all(after == before + 1 for before, after in pairwise(steps)), (
                f"{name} skipped or went back: {steps}"
            )
        assert [gpu["state"] for gpu in self.up.client.gpus()] == ["idle", "idle"]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with running(tmp_path / "state", "2xV100") as up:
        yield Ground(up, tmp_path)


@pytest.mark.parametrize("seam", SEAMS)
def test_a_reshape_down_comes_to_its_end_after_a_crash_at(ground: Ground, seam: str) -> None:
    up = ground.up
    ground.big_trains_alone()
    assert up.stop() == 0
    up.start(seam)
    try:
        ground.submit("small", [1])
    except CoordinatorUnreachable:
        pass
    wait_for(lambda: up.gone, what=f"{seam} is reached")
    assert up.process.returncode == -signal.SIGKILL
    found = {name: up.shapes(name) for name in ground.files}
    up.start()
    ground.trains("small", [1])
    ground.trains("big", [2, 1])
    ground.tell("small")
    ground.trains("big", [2, 1, 2])
    ground.tell("big")
    after = {name: up.shapes(name) for name in ground.files}
    sys.stdout.write(f"{seam}: trained on {found} before the crash, on {after} in all\n")
    ground.nothing_was_shared_or_lost()


def test_a_reshape_up_comes_to_its_end_though_each_step_of_it_is_a_crash(ground: Ground) -> None:
    ground.small_ends_though_each_is_a_crash(GROWING)
    ground.trains("big", [2, 1, 2])
    ground.tell("small")
    ground.tell("big")
    ground.nothing_was_shared_or_lost()


def test_a_job_comes_to_its_end_though_each_step_of_ending_is_a_crash(ground: Ground) -> None:
    ground.small_ends_though_each_is_a_crash(ENDING)
    ground.tell("small")
    ground.trains("big", [2, 1, 2])
    ground.tell("big")
    ground.nothing_was_shared_or_lost()


def test_the_oracle_sees_a_gpu_that_was_given_to_two_trainings(tmp_path: Path) -> None:
    """What makes the empty lists above worth something."""
    both = [_train_by_hand(tmp_path, name) for name in ("one", "two")]
    try:
        wait_for(
            lambda: len({use["kind"] for use in violations(tmp_path / "locks")}) == 2, what="both kinds of evidence"
        )
    finally:
        for process in both:
            process.kill()
            process.wait()
    found: list[dict[str, Any]] = violations(tmp_path / "locks")
    assert {line["gpu"] for line in found} == {"GPU-a"}
    assert {line["kind"] for line in found} == {"refused lock", "overlap"}


def _train_by_hand(folder: Path, name: str) -> subprocess.Popen[bytes]:
    variables = {
        "RESHAPE_JOB_ID": name, "RESHAPE_GENERATION": "1", "CUDA_VISIBLE_DEVICES": "GPU-a",
        "RESHAPE_GPU_LOCKS": str(folder / "locks"), "RESHAPE_CHECKPOINTS": str(folder / name),
        "RESHAPE_EMULATED_SPEED": '{"1": 0.05}',
    }  # fmt: skip
    command = [sys.executable, str(TRAINERS / "until_told.py"), str(folder / "never")]
    return subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.DEVNULL)
