"""`reshape down` where no `reshape up` runs says which trainings it leaves as they are."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from reshape.client import CoordinatorUnreachable
from reshape.services import detached


def launched(state: Path, job_id: str) -> Path:
    """Make the folder of a launch, and return the lock that its shim would hold."""
    folder = state / "jobs" / f"{job_id}-abcdefgh-l1"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text(json.dumps({"job_id": job_id, "uid": "u", "launch": 1}))
    lock = folder / "shim.lock"
    lock.touch()
    return lock


def test_it_names_the_trainings_that_go_on(tmp_path: Path) -> None:
    with launched(tmp_path, "mnist").open("r+") as shim:
        fcntl.flock(shim, fcntl.LOCK_EX)
        with pytest.raises(CoordinatorUnreachable, match="but mnist is still training: run `reshape up`, then"):
            detached.stop(tmp_path, cancel_all=True)
    with pytest.raises(CoordinatorUnreachable, match="; there is nothing to stop"):
        detached.stop(tmp_path, cancel_all=True)
