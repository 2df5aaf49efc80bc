"""Jobs that go wrong, beside one that trains well: each ends with a sentence, and the good one never notices.

All through one real `reshape up` on four emulated GPUs. `steady` trains from the first test to the last.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.up import TRAINERS, Up, digits, of_folder, running, wait_for

View = dict[str, Any]

PACED = "digits-numpy"  # a type whose speed is known, so that its steps take time


class Ground:
    """`reshape up`, and the job that must not be hurt."""

    def __init__(self, up: Up, folder: Path) -> None:
        self.up, self.file = up, folder / "end-steady"

    def submit(self, job_id: str, command: list[str] | str, counts: list[int], **more: Any) -> None:
        doc = {"job_id": job_id, "command": command, "optional_num_gpus": counts, "elastic": True}
        self.up.client.submit({**doc, **more})

    def trainer(self, name: str) -> list[str]:
        return [sys.executable, str(TRAINERS / f"{name}.py")]

    def until(self, job_id: str, state: str) -> View:
        return self.up.until(job_id, state)

    def steady(self) -> tuple[int, int, int]:
        """What a disturbance would change: generation, launch, pid of the training."""
        job = self.up.job("steady")
        return job["generation"], job["launch"], job["trainer_pid"]

    def steps(self) -> int:
        return len(self.up.steps("steady"))

    def of_job(self, job_id: str) -> list[int]:
        """Every living process that trains for a job, children included."""
        mark, found = f"RESHAPE_JOB_ID={job_id}".encode(), []
        for pid in of_folder(self.up.state):
            try:
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in variables:
                found.append(pid)
        return found


@pytest.fixture(scope="module")
def all_day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("misbehave")
    with running(folder / "state", "4xV100") as up:
        ground = Ground(up, folder)
        ground.submit("steady", [*ground.trainer("until_told"), str(ground.file)], [1], job_type=PACED)
        up.until("steady", "running")
        wait_for(ground.steps, what="steady makes steps")
        yield ground
        ground.file.touch()
        up.until("steady", "completed")
        steps = up.steps("steady")
        assert up.violations() == []
        assert all(after == before + 1 for before, after in pairwise(steps)), steps


@pytest.fixture
def ground(all_day: Ground) -> Iterator[Ground]:
    """Each test asks at its end whether the healthy job went on as if nothing had been."""
    before, steps = all_day.steady(), all_day.steps()
    yield all_day
    wait_for(lambda: all_day.steps() > steps, what="steady goes on")
    assert all_day.up.job("steady")["state"] == "running"
    assert all_day.steady() == before


def test_an_unknown_command_fails_at_once_with_its_name(ground: Ground) -> None:
    ground.submit("unknown", ["no-such-program-here", "--fast"], [1])
    job = ground.until("unknown", "failed")
    assert "no-such-program-here" in job["message"] and "correct the job's command" in job["message"]
    assert not job["retries"]


def test_a_training_that_crashes_at_once_fails_after_its_tries_with_its_last_line(ground: Ground) -> None:
    ground.submit("crashes", ground.trainer("crashes_at_once"), [1, 2])
    job = ground.until("crashes", "failed")
    assert "ended with exit code 1: ValueError: no such dataset: cifar-11; gave up after 4 tries" in job["message"]
    assert job["gpu_ids"] is None and job["num_gpus"] == 0


def test_a_training_that_ends_early_is_completed_and_says_how_far_it_came(ground: Ground) -> None:
    ground.submit("early", ground.trainer("exits_early"), [1], iterations=100)
    assert ground.until("early", "completed")["message"] == "ended by itself after 1 of 100 iterations"


def test_a_training_deaf_to_sigterm_is_reshaped_after_the_grace_and_its_children_are_gone(ground: Ground) -> None:
    ground.submit("deaf", ground.trainer("ignores_sigterm"), [1, 2])
    was = ground.until("deaf", "running")
    other = {1: 2, 2: 1}[was["num_gpus"]]
    family = ground.of_job("deaf")
    assert len(family) == 2
    ground.up.client.reshape("deaf", other)
    wait_for(lambda: not set(family) & set(ground.of_job("deaf")), what="the old processes are gone")
    wait_for(lambda: ground.up.job("deaf")["num_gpus"] == other, what="the new shape")
    now = ground.until("deaf", "running")
    assert now["generation"] > was["generation"] and now["launch"] == was["launch"]
    assert (now["shim_pid"], now["sidecar_pid"]) == (was["shim_pid"], was["sidecar_pid"])
    ground.up.client.cancel("deaf")
    ground.until("deaf", "cancelled")
    assert ground.of_job("deaf") == []


def test_a_job_for_more_gpus_than_there_are_waits_with_a_reason_and_smaller_ones_pass_it(ground: Ground) -> None:
    ground.submit("huge", ["true"], [8])
    message = wait_for(lambda: m if "8" in (m := ground.up.job("huge")["message"]) else "", what="a reason")
    assert "at least 8" in message and "has 4 working" in message
    ground.submit("small", ground.trainer("exits_early"), [1])
    ground.until("small", "completed")
    assert ground.up.job("huge")["state"] == "submitted"
    ground.up.client.cancel("huge")
    ground.until("huge", "cancelled")


def test_a_code_folder_that_is_not_there_is_said(ground: Ground) -> None:
    missing = str(ground.up.state / "no-code")
    ground.submit("homeless", ["true"], [1], code=missing)
    job = ground.until("homeless", "failed")
    assert job["message"] == f"cannot start: no such folder: {missing}; correct the job's `code`"
    assert not job["retries"]


def test_a_killed_sidecar_comes_back_and_the_training_never_notices(ground: Ground) -> None:
    ground.submit("watched", [*ground.trainer("until_told"), str(ground.up.state / "never")], [1], job_type=PACED)
    was = ground.until("watched", "running")
    os.kill(was["sidecar_pid"], signal.SIGKILL)
    now = wait_for(
        lambda: j if (j := ground.up.job("watched")).get("sidecar_pid") not in (None, was["sidecar_pid"]) else None
    )
    assert (now["trainer_pid"], now["shim_pid"]) == (was["trainer_pid"], was["shim_pid"])
    steps = len(ground.up.steps("watched"))
    wait_for(lambda: len(ground.up.steps("watched")) > steps, what="it trains on")
    assert ground.up.job("watched")["generation"] == was["generation"]
    ground.up.client.cancel("watched")
    ground.until("watched", "cancelled")


def test_a_job_whose_shim_is_killed_is_launched_again_from_its_checkpoint(ground: Ground) -> None:
    """The kernel ends the training with it; what was done since the last checkpoint is done again."""
    up = ground.up
    up.client.submit(digits("orphan", 100_000, [1]))
    was = ground.until("orphan", "running")
    wait_for(lambda: max(up.steps("orphan"), default=0) > 12, what="steps beyond the first checkpoint")
    os.kill(was["shim_pid"], signal.SIGKILL)
    now = wait_for(lambda: j if (j := up.job("orphan"))["launch"] > was["launch"] and j["state"] == "running" else None)
    assert now["shim_pid"] != was["shim_pid"]
    steps = wait_for(lambda: s if (s := up.steps("orphan"))[-1] > 25 else None)
    back = [after for before, after in pairwise(steps) if after != before + 1]
    assert len(back) <= 1 and all(step > 10 for step in back), steps
    up.client.cancel("orphan")
    ground.until("orphan", "cancelled")


def test_stopping_reshape_up_stops_no_training(ground: Ground) -> None:
    up, before = ground.up, ground.steady()
    assert up.stop() == 0
    steps = ground.steps()
    wait_for(lambda: ground.steps() > steps, what="steady goes on without a coordinator")
    up.start()
    wait_for(lambda: up.job("steady").get("trainer_pid"), what="steady is heard again")
    assert ground.steady() == before
