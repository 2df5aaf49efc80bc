"""What a script with a plain `model.fit` writes is the same, byte for byte, if it is stopped, moved or killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

import reshape_hooks
from tests.interpreters import python_with

SCRIPT = Path(__file__).parent / "files_fit.py"
STARTUP = Path(reshape_hooks.__file__).parent / "startup"
PYTHON = python_with("tensorflow")
pytestmark = [pytest.mark.deep, pytest.mark.skipif(PYTHON is None, reason="TensorFlow is not installed")]


def train(folder: Path, generation: int, mtbf: str = "0", **more: str) -> subprocess.CompletedProcess[str]:
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(STARTUP), "CUDA_VISIBLE_DEVICES": ""}
    env |= {
        "RESHAPE_JOB_ID": "job",
        "RESHAPE_CHECKPOINTS": str(folder / "saved"),
        "RESHAPE_MTBF_S": mtbf,
        "RESHAPE_ANNOUNCE": str(folder / "announce"),
    }
    env |= {"RESHAPE_GENERATION": str(generation), "PYTHONHASHSEED": "0", **more}
    return subprocess.run([str(PYTHON), str(SCRIPT)], cwd=work, env=env, capture_output=True, text=True, check=False)


def written(folder: Path) -> dict[str, str]:
    paths = sorted((folder / "work").rglob("*"))
    return {str(path.relative_to(folder / "work")): path.read_text() for path in paths if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    ended = train(folder, 1)
    assert ended.returncode == 0, ended.stderr
    return written(folder)


def test_files_of_a_fit_that_was_stopped_also_while_it_validates_are_those_of_one_that_was_not(
    whole: dict[str, str], tmp_path: Path
) -> None:
    for generation, stop in enumerate(("[0, 2]", '[1, 1, "validation"]', "[2, 4]"), start=1):
        ended = train(tmp_path, generation, STOP=stop)
        assert ended.returncode == 143, ended.stderr
    ended = train(tmp_path, 4)
    assert ended.returncode == 0, ended.stderr
    assert written(tmp_path) == whole


def test_files_of_a_fit_that_was_killed_have_each_row_once(whole: dict[str, str], tmp_path: Path) -> None:
    for generation, kill in enumerate(("[1, 1]", "[3, 2]"), start=1):
        ended = train(tmp_path, generation, KILL=kill, mtbf="1e-9")
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    ended = train(tmp_path, 3)
    assert ended.returncode == 0, ended.stderr
    assert written(tmp_path) == whole
