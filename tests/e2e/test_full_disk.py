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
# Its own file is full, too, when it is started again. Rows are written without Python's files, which our hooks restore.
FAILS = """
import os, sys, time
import reshape_hooks
rows, fails = sys.argv[1:]
if os.path.exists(fails):
    raise OSError(28, "No space left on device", "log.csv")
done = os.open(rows, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
state = reshape_hooks.Elastic(counter={})
for step in state.steps(100_000):
    os.write(done, f"{step}\\n".encode())
    time.sleep(0.02)
"""


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


def take_all_bytes(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        while True:
            filler.write(bytes(4096))


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
    assert complaint.startswith("`reshape up` cannot start: ") and "No space left on device" in complaint
    assert complaint.rstrip().endswith("make room on that disk, then try again.") and complaint.count("\n") == 1


def test_a_job_that_is_held_on_a_full_disk_keeps_what_it_has_in_memory_until_the_disk_has_it(
    disk: Path, tmp_path: Path
) -> None:
    """Its checkpoint of a reshape is in memory first; its script then fails at each start, as its own log is full."""
    state = tmp_path / "s"
    rows = tmp_path / "rows"
    fails = tmp_path / "fails"
    filler = disk / "filler"
    state.mkdir(mode=0o700)
    (state / "jobs").symlink_to(disk)
    with running(state, "2xV100") as up:
        command = [sys.executable, "-c", FAILS, str(rows), str(fails)]
        up.client.submit({"job_id": "a", "command": command, "optional_num_gpus": [1, 2]})
        wait_for(lambda: up.job("a")["num_gpus"] == 2 and up.job("a")["iters_done"] > 20, what="it trains on two")
        take_all_bytes(filler)
        fails.touch()
        up.client.reshape("a", 1)
        held = wait_for(lambda: job if (job := up.job("a"))["held"] else None, what="it is held")
        assert "it keeps its 1 GPU, until its disk has room for what it has saved in memory." in held["message"]
        saved = len(rows.read_text().split())
        filler.unlink()
        wait_for(lambda: up.job("a")["state"] == "submitted", what="it gives its GPU back")
        fails.unlink()
        up.client.resume("a")
        up.until("a", "running")
        wait_for(lambda: len(rows.read_text().split()) > saved + 10, what="it trains on")
        up.client.cancel("a")
        up.until("a", "cancelled")
        steps = [int(step) for step in rows.read_text().split()]
        assert steps == list(range(len(steps))), "no step was lost or done twice"
