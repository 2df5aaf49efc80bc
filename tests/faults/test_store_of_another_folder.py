"""A second state folder for a store of which jobs were launched in another one: real processes on one SQLite file."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.up import WITHIN_S, Up, digits, running, wait_for
from tests.patience import patient


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shared.sqlite'}"


@pytest.fixture
def up(tmp_path: Path, url: str) -> Iterator[Up]:
    with running(tmp_path / "state", "2xV100", url) as up:
        yield up


@pytest.fixture
def other(tmp_path: Path, url: str) -> Iterator[Up]:
    """The same store with another state folder; not started."""
    other = Up(tmp_path / "other", "2xV100", url)
    yield other
    other.clear()


def trains_on(up: Up, job_id: str) -> None:
    steps = len(up.steps(job_id))
    wait_for(lambda: len(up.steps(job_id)) > steps, what=f"{job_id} trains on")


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_while_its_jobs_are_in_another_state_folder_it_does_not_start_and_names_that_one(
    up: Up, other: Up, end: str
) -> None:
    up.client.submit(digits("one", 100_000, [1]))
    was = up.until("one", "running")
    getattr(up, end)()
    with pytest.raises(AssertionError):
        other.start()
    assert other.process is not None
    assert other.process.wait(patient(WITHIN_S)) == 1
    assert other.log.splitlines()[-1] == (
        f"Jobs of this store that have not ended (one) were launched in the state folder {up.state}: "
        f"start with --state {up.state}."
    )
    assert not (other.state / "jobs").exists()
    trains_on(up, "one")
    up.start()
    now = wait_for(lambda: j if (j := up.job("one")).get("trainer_pid") else None, what="it is heard of again")
    assert (now["trainer_pid"], now["launch"]) == (was["trainer_pid"], was["launch"])


def test_once_its_jobs_have_ended_a_store_can_be_used_with_another_state_folder(up: Up, other: Up) -> None:
    up.client.submit(digits("one", 5, [1]))
    up.until("one", "completed")
    up.stop()
    other.start().submit(digits("two", 5, [1]))
    other.until("two", "completed")


def test_a_state_folder_that_was_moved_is_the_same_one(up: Up, other: Up) -> None:
    up.client.submit(digits("one", 100_000, [1]))
    was = up.until("one", "running")
    up.stop()
    up.state.rename(other.state)
    other.start()
    assert other.job("one")["launch"] == was["launch"]
    other.client.cancel("one")
    other.until("one", "cancelled")


def test_jobs_of_a_state_folder_that_was_deleted_are_launched_in_a_new_one(up: Up, other: Up) -> None:
    up.client.submit(digits("one", 100_000, [1]))
    was = up.until("one", "running")
    up.stop()
    os.kill(was["shim_pid"], signal.SIGKILL)
    shutil.rmtree(up.state, ignore_errors=True)
    other.start()
    now = other.until("one", "running")
    assert now["launch"] > was["launch"]


def test_with_a_copy_of_the_state_folder_nothing_that_trains_is_launched_again(up: Up, other: Up) -> None:
    up.client.submit(digits("one", 100_000, [1]))
    was = up.until("one", "running")
    up.stop()
    shutil.copytree(up.state, other.state, ignore=shutil.ignore_patterns("shim.sock", "reports", "up.log"))
    other.start()
    wait_for(lambda: f" still runs in {up.state}/jobs/one-" in other.log, what="it is said")
    assert other.job("one")["launch"] == was["launch"]
    trains_on(up, "one")
    assert other.violations() == []
