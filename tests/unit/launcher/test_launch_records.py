"""Copies of documents beside the store: one per launched job, until it has ended; none costs the step of a job."""

from __future__ import annotations

import fcntl
import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coordinator.model import states as s
from launcher.launch_records import LaunchRecords
from launcher.local import running_jobs
from launcher.names import job_name, launch_name

DISK_IS_FULL = OSError(28, "No space left on device")


def document(**more: Any) -> dict[str, Any]:
    return {"_id": "a", "job_id": "a", "uid": "u", "state": s.RUNNING, "version": 1, **more}


@pytest.fixture
def records(tmp_path: Path) -> LaunchRecords:
    (tmp_path / "jobs" / job_name("a", "u")).mkdir(parents=True)
    return LaunchRecords(tmp_path, tmp_path / "jobs")


def test_a_copy_is_read_by_its_owner_only(records: LaunchRecords, tmp_path: Path) -> None:
    records.keep(document(env={"TOKEN": "secret"}))
    (copy,) = (tmp_path / "records").iterdir()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600 and stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    assert [doc["uid"] for doc in records.open()] == ["u"]


def test_a_value_that_json_has_no_word_for_is_kept_as_text(records: LaunchRecords) -> None:
    records.keep(document(made_by_hand=datetime(2026, 1, 1, tzinfo=UTC)))
    assert [doc["made_by_hand"] for doc in records.open()] == ["2026-01-01 00:00:00+00:00"]


def test_a_full_disk_costs_no_step(records: LaunchRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records.keep(document())

    def refuse(*_: object) -> None:
        raise DISK_IS_FULL

    monkeypatch.setattr(Path, "replace", refuse)
    records.keep(document(version=2))
    assert [doc["version"] for doc in records.open()] == [1]
    assert len(list((tmp_path / "records").iterdir())) == 1, "nothing is left half written"


def test_a_job_that_ended_on_a_full_disk_does_not_come_back(
    records: LaunchRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.keep(document())

    def refuse(*_: object) -> None:
        raise DISK_IS_FULL

    monkeypatch.setattr(Path, "replace", refuse)
    records.keep(document(version=2, state=s.COMPLETED))
    assert list(records.open()) == []
    assert not any(file.is_file() for file in (tmp_path / "jobs").rglob("*")), "nothing is left half written"


@pytest.mark.parametrize("state", [s.RUNNING, s.CANCELLED])
def test_a_job_that_was_told_to_end_runs_as_long_as_its_processes(
    records: LaunchRecords, tmp_path: Path, state: str
) -> None:
    """The removal of a launch takes `launch.json` away first; a shim that is paused by a signal ends nothing."""
    launch = tmp_path / "jobs" / launch_name("a", "u", 1)
    launch.mkdir()
    records.keep(document(state=state))
    with (launch / "shim.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert running_jobs(tmp_path) == {"a"}
        (launch / "launch.json").write_text(json.dumps({"job_id": "a", "uid": "u", "launch": 1}))
        assert running_jobs(tmp_path) == {"a"}
        (launch / "launch.json").unlink()
    assert running_jobs(tmp_path) == set()
