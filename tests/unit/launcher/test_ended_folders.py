"""Of jobs that the store has dropped only our own files go, and nothing that a training has written."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from coordinator.adapters.clock import SystemClock
from coordinator.config import Keep
from coordinator.model import states as s
from coordinator.stores.opening import open_store
from coordinator.stores.retention import CLOCK, STEADY_S
from launcher.ended_folders import remove_ended
from launcher.local import Folders, LocalPlatform
from reshape.services import old_folders
from reshape_hooks.plain import boot_id

NOW = 1_700_000_000.0
DAY = 86_400.0


class Ground:
    def __init__(self, state: Path) -> None:
        self.state, self.jobs = state, state / "jobs"
        self.platform = LocalPlatform(state, "http://127.0.0.1:9", b"k" * 32)

    def ended(self, job_id: str, ago_s: float, launches: int = 1, **more: Any) -> list[Folders]:
        """A job that ended so long ago, with what launches and trainings leave behind."""
        doc = {"_id": job_id, "job_id": job_id, "uid": f"uid-{job_id}", "state": s.COMPLETED, "closed": True, **more}
        found = [self.platform.folders({**doc, "launch": number}) for number in range(1, launches + 1)]
        for folders in found:
            folders.launch.mkdir(parents=True)
            folders.checkpoints.mkdir(parents=True, exist_ok=True)
            for file in ("shim.lock", "sidecar.log"):
                (folders.launch / file).touch()
            folders.output.write_text("step=1\n")
        self.platform.keep({**doc, "launch": launches, "finish_ts": NOW - ago_s})
        copy = found[0].job / "job.json"
        os.utime(copy, (NOW - ago_s, NOW - ago_s))
        return found

    def removed(self, *known: str) -> int:
        return remove_ended(self.jobs, {f"uid-{job_id}" for job_id in known}, NOW - 30 * DAY)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def test_all_of_it_goes_where_the_training_has_left_nothing(ground: Ground) -> None:
    old = ground.ended("old", 31 * DAY, launches=3)
    assert [folders.launch.is_dir() for folders in old] == [True] * 3
    assert ground.removed() == 1
    assert list(ground.jobs.iterdir()) == []
    assert ground.removed() == 0


def test_checkpoints_and_what_the_script_wrote_stay(ground: Ground) -> None:
    (folders,) = ground.ended("old", 31 * DAY)
    (folders.checkpoints / "g1-s7").mkdir()
    (folders.job / "model.pt").write_text("the result")
    assert ground.removed() == 1
    assert sorted(str(one.relative_to(ground.jobs)) for one in ground.jobs.rglob("*")) == [
        name.format(folders.job.name) for name in ("{}", "{}/checkpoints", "{}/checkpoints/g1-s7", "{}/model.pt")
    ]


@pytest.mark.parametrize(
    ("more", "known"),
    [
        ({"state": s.RUNNING}, ()),
        ({"state": s.FAILED}, ("job",)),
        ({"uid": "uid-another"}, ()),
    ],
)
def test_a_job_that_the_store_has_or_that_has_not_ended_keeps_its_folder(
    ground: Ground, more: dict[str, Any], known: tuple[str, ...]
) -> None:
    (folders,) = ground.ended("job", 31 * DAY)
    copy = folders.job / "job.json"
    copy.write_text(json.dumps({**json.loads(copy.read_text()), **more}))
    os.utime(copy, (0, 0))
    before = sorted(ground.jobs.rglob("*"))
    assert ground.removed(*known) == 0
    assert sorted(ground.jobs.rglob("*")) == before


def test_a_young_one_and_one_whose_processes_still_run_keep_all(ground: Ground) -> None:
    ground.ended("young", 29 * DAY)
    (folders,) = ground.ended("old", 31 * DAY)
    before = sorted(ground.jobs.rglob("*"))
    with (folders.launch / "shim.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ground.removed() == 0
    assert sorted(ground.jobs.rglob("*")) == before
    assert ground.removed() == 1
    assert {one.name.partition("-")[0] for one in ground.jobs.iterdir()} == {"young"}


def test_folders_of_a_user_are_never_followed_or_taken_for_ours(ground: Ground, tmp_path: Path) -> None:
    (folders,) = ground.ended("old", 31 * DAY)
    theirs = tmp_path / "theirs"
    folders.job.rename(theirs)
    folders.job.symlink_to(theirs)
    (ground.jobs / "notes").mkdir()
    (ground.jobs / "notes" / "job.json").write_text((theirs / "job.json").read_text())
    os.utime(ground.jobs / "notes" / "job.json", (0, 0))
    assert ground.removed() == 0
    assert (theirs / "output.log").exists() and (ground.jobs / "notes" / "job.json").exists()


def test_nothing_goes_while_the_clock_cannot_be_believed(ground: Ground) -> None:
    store, clock = open_store(f"sqlite:///{ground.state / 'reshape.sqlite'}"), SystemClock()
    ground.ended("old", NOW - 1.0)  # in 1970
    ground.ended("kept", NOW - 1.0)
    store.insert("jobs", {"_id": "kept", "uid": "uid-kept", "closed": True})
    old_folders.look(ground.state, store, Keep(), clock)
    assert len(list(ground.jobs.iterdir())) == 4
    now = {"boot": boot_id(), "wall": clock.wall(), "now": clock.now(), "beside_s": 2 * STEADY_S}
    store.put("terms", {"_id": CLOCK, **now})
    old_folders.look(ground.state, store, Keep(), clock)
    assert {one.name.partition("-")[0] for one in ground.jobs.iterdir()} == {"kept"}
    store.close()
