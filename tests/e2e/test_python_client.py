"""Runs the blocks of `docs/how-to/python.md` and of the client's README as they stand, against a real `reshape up`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.up import ROOT, Up, running
from tests.patience import patient


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


SUBMITTED, SWEEP, WHAT_IF, SEVERAL = blocks("docs/how-to/python.md")
OF_A_SCRIPT = blocks("reshape/README.md")[0]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("python") / "state", "2xV100") as found:
        yield found


def printed(block: str, up: Up, tmp_path: Path) -> list[str]:
    environment = {**os.environ, "RESHAPE_STATE": str(up.state), "PYTHONPATH": str(ROOT), "RESHAPE_URL": ""}
    command = [sys.executable, "-P", "-c", block]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=patient(120)
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_job_is_submitted_followed_waited_for_and_explained_in_ten_lines(up: Up, tmp_path: Path) -> None:
    assert len(SUBMITTED.splitlines()) <= 10
    lines = printed(SUBMITTED, up, tmp_path)
    assert lines[:6] == [*(f"step={n} total=5" for n in range(1, 6)), "completed"]
    assert "first" in lines[6] and "1 GPU" in lines[6]


def test_what_if_predicts_beside_what_happens(up: Up, tmp_path: Path) -> None:
    lines = printed(WHAT_IF, up, tmp_path)
    assert re.fullmatch(r"Makespan: .*, then .+", lines[0])
    assert lines[-1].startswith("new-1 ")


def test_several_are_waited_for_at_once(up: Up, tmp_path: Path) -> None:
    assert printed(SEVERAL, up, tmp_path) == ["['completed', 'completed']"]


def test_a_sweep_is_submitted_and_each_job_tells_its_result(up: Up, tmp_path: Path) -> None:
    assert printed(SWEEP, up, tmp_path) == ["square-1 completed 4.0", "square-2 completed 9.0"]


def test_a_script_runs_in_this_folder_with_this_interpreter(up: Up, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys\nprint('step=1 total=1')\nprint(os.getcwd(), sys.executable)\n")
    ended, *output = printed(OF_A_SCRIPT, up, tmp_path)
    assert re.match(r"<Job train-\d+: completed", ended)
    assert output[:2] == ["step=1 total=1", f"{tmp_path} {sys.executable}"]
