"""`reshape up` on a disk that is full, mounted by the test: work waits until there is room, and verbs say why."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.up import running, wait_for
from tests.fakes.terminal import environment

FILES = 400  # that fit on the disk
QUICK = {"RESHAPE_INIT_TIMEOUT_S": "10"}  # a launch without a place is tried again after a tenth of it
SAYS = "print('step=1 total=1', flush=True)"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB and 400 files."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size=16m,nr_inodes={FILES}", "none", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may mount nothing")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def take_all_files(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(OSError, match="No space left"):
        for number in range(FILES + 1):
            (folder / str(number)).touch()


def free(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def reshape(state: Path, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "reshape", "--state", str(state), *words]
    done = subprocess.run(command, env=environment(state), capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_a_job_that_is_submitted_on_a_full_disk_starts_once_there_is_room(disk: Path) -> None:
    state = disk / "state"
    rest = disk / "rest"
    with running(state, "1xV100", **QUICK) as up:
        take_all_files(rest)
        up.client.submit({"job_id": "a", "command": [sys.executable, "-c", SAYS], "optional_num_gpus": [1]})
        said = f"could not be launched, tries again: no file can be written in {state} (No space left on device): make"
        wait_for(lambda: up.job("a")["message"].startswith(said), what="it says what it waits for")
        wait_for(lambda: up.job("a")["launch"] > 4, what="it is tried more often than a fault would be")
        assert up.job("a")["retries"] == 0
        free(rest)
        assert up.until("a", "completed")["retries"] <= 1, "one where the room came just then"


@pytest.mark.parametrize("words", [(), ("--detach",)], ids=["up", "detached"])
def test_up_says_that_its_disk_is_full(disk: Path, words: tuple[str, ...]) -> None:
    state = disk / "state"
    state.mkdir(mode=0o700)
    with (disk / "rest").open("wb", buffering=0) as rest, pytest.raises(OSError, match="No space left"):
        while True:
            rest.write(bytes(4096))
    code, out, complaint = reshape(state, "up", "--gpus", "1xV100", *words)
    assert (code, out) == (1, "")
    assert complaint.startswith("`reshape up` cannot begin: ") and "No space left on device" in complaint
    assert complaint.rstrip().endswith("make room on that disk, then try again.") and complaint.count("\n") == 1
