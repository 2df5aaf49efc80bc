"""A command that is submitted runs as if it had been typed: folder, programs, packages, exit code. A real `up`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.up import ROOT, WITHIN_S, Up, running

TRAIN = """
import json, os, pathlib, mine
saved = pathlib.Path(os.environ["RESHAPE_CHECKPOINTS"])
was = (saved / "of-an-earlier-job").exists()
(saved / "of-an-earlier-job").touch()
names = ("FROM_VENV", "HF_HOME", "HF_TOKEN", "ONLY_OF_UP")
print(json.dumps({"data": open("data.txt").read(), "was": was, **{n: os.environ.get(n) for n in names}}), flush=True)
raise SystemExit(int(os.environ.get("LC_CODE", "0")))
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("typed")
    with running(folder / "state", "2xV100", ONLY_OF_UP="yes") as started:
        yield started


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user, with what looks like an active virtual environment beside it."""
    folder = tmp_path_factory.mktemp("user") / "my digits"
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "packages").mkdir()
    (folder / "packages" / "mine.py").write_text("")
    (folder / "data.txt").write_text("rows")
    (folder / "train.py").write_text(TRAIN)
    python = folder / "venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexport FROM_VENV=yes\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder


def reshape(up: Up, mine: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in the user's folder and environment; `-P` keeps that folder from hiding ours."""
    venv = str(mine / "venv")
    environment = os.environ | {
        "PATH": f"{venv}/bin{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": venv,
        "HF_HOME": "/data", "HF_TOKEN": "no", "PYTHONPATH": f"{mine / 'packages'}{os.pathsep}{ROOT}", **more,
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "reshape", "--state", str(up.state), *arguments]
    return subprocess.run(
        command, cwd=mine, env=environment, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )


def test_it_runs_in_the_callers_folder_with_the_callers_python_and_packages_and_no_secret(up: Up, mine: Path) -> None:
    done = reshape(up, mine, "submit", "--follow", "--", "python", "train.py")
    said, printed = done.stdout.splitlines()
    python = f"python of the virtual environment {mine / 'venv'}"
    assert said == f"Job train-1 is submitted: 1 GPU, in {mine}, with {python}."
    assert printed == (
        '{"data": "rows", "was": false, "FROM_VENV": "yes", "HF_HOME": "/data", "HF_TOKEN": null, "ONLY_OF_UP": null}'
    )
    assert (done.returncode, done.stderr) == (0, "Job train-1 completed.\n")
    assert "train-1" in reshape(up, mine, "jobs").stdout, "it stays in sight"


def test_a_name_can_be_used_again_and_finds_no_checkpoint_of_the_job_before(up: Up, mine: Path) -> None:
    for _ in range(2):
        done = reshape(up, mine, "submit", "--follow", "--name", "again", "--", "python", "train.py")
        assert done.returncode == 0, done
        assert '"was": false' in done.stdout
        up.until("again", "completed")
    assert reshape(up, mine, "jobs").stdout.count("again ") == 2


def test_a_script_that_fails_is_waited_for_and_told_by_the_exit_code(up: Up, mine: Path) -> None:
    done = reshape(up, mine, "submit", "--wait", "--cpu", "--name", "bad", "--", "python", "train.py", LC_CODE="3")
    assert done.returncode == 1
    assert done.stderr.startswith("Job bad failed: ")
    again = reshape(up, mine, "cancel", "bad")
    assert (again.returncode, again.stdout) == (0, "Job bad has already ended: failed.\n")


def test_the_name_of_a_living_job_is_refused(up: Up, mine: Path) -> None:
    assert reshape(up, mine, "submit", "--name", "long", "--", "sleep", "600").returncode == 0
    done = reshape(up, mine, "submit", "--name", "long", "--", "sleep", "600")
    assert (done.returncode, "belongs to another job; choose another one" in done.stderr) == (1, True)
