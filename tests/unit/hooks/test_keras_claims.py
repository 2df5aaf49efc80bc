"""Several plain `model.fit` of one job give what each gives alone, in processes or in one script that skips some."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import reshape_hooks
from tests.interpreters import python_with

SCRIPT = Path(__file__).parent / "swept_fit.py"
STARTUP = Path(reshape_hooks.__file__).parent / "startup"
PYTHON = python_with("tensorflow")
pytestmark = [pytest.mark.deep, pytest.mark.skipif(PYTHON is None, reason="TensorFlow is not installed")]
IN_A_SHELL = f"set -e; for rate in 0.1 0.01; do {PYTHON} {SCRIPT} $rate; done"
SIDE_BY_SIDE = f"{PYTHON} {SCRIPT} 0.1 & first=$!; {PYTHON} {SCRIPT} 0.01 & second=$!; wait $first && wait $second"
IN_ONE = f"{PYTHON} {SCRIPT}"


def run(folder: Path, generation: int, command: str, stop: str = "") -> int:
    folder.mkdir(exist_ok=True)
    given = {
        "PYTHONPATH": str(STARTUP), "RESHAPE_JOB_ID": "job", "RESHAPE_CHECKPOINTS": str(folder / "checkpoints"),
        "RESHAPE_ANNOUNCE": str(folder / "announce"), "RESHAPE_GENERATION": str(generation),
        "CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0", "STOP": stop, "RESHAPE_MTBF_S": "0",
    }  # fmt: skip
    ended = subprocess.run(
        command, shell=True, cwd=folder, env=os.environ | given, capture_output=True, text=True, check=False
    )
    assert "reshape:" not in ended.stderr, ended.stderr
    return ended.returncode


def results(folder: Path) -> dict[str, str]:
    return {path.name.partition("-")[2]: path.read_text() for path in folder.glob("result-*")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each rate gives in a job of its own."""
    found: dict[str, str] = {}
    for rate in ("0.1", "0.01"):
        folder = tmp_path_factory.mktemp(rate)
        assert run(folder, 1, f"{PYTHON} {SCRIPT} {rate}") == 0
        found |= results(folder)
    assert found["0.1"] != found["0.01"]
    return found


@pytest.mark.parametrize("command", [IN_A_SHELL, SIDE_BY_SIDE], ids=["in-a-shell", "side-by-side"])
def test_each_fit_of_several_processes_gives_what_it_gives_alone(
    tmp_path: Path, alone: dict[str, str], command: str
) -> None:
    run(tmp_path, 1, command, "0.01 5")
    assert "0.01" not in results(tmp_path)
    assert run(tmp_path, 2, command) == 0
    assert results(tmp_path) == alone


def test_fits_of_one_script_that_skips_what_has_ended_give_what_they_give_undisturbed(tmp_path: Path) -> None:
    assert run(tmp_path / "whole", 1, IN_ONE) == 0
    assert run(tmp_path / "parts", 1, f"{IN_ONE} >> log", "0.01 5") == 143
    assert run(tmp_path / "parts", 2, f"{IN_ONE} >> log") == 0
    assert results(tmp_path / "parts") == results(tmp_path / "whole")
    steps = [int(one) for one in re.findall(r"^step=(\d+) total", (tmp_path / "parts" / "log").read_text(), re.M)]
    assert steps == sorted(steps), "its count goes on: nothing looks as if it were done again"
    assert steps[-1] > 24


def test_trainings_with_the_callback_keep_their_checkpoints_apart(tmp_path: Path) -> None:
    command = f"{PYTHON} {SCRIPT.with_name('saving_sweep.py')}"
    assert run(tmp_path / "whole", 1, command) == 0
    assert run(tmp_path / "parts", 1, command, "0.1 3") == 143
    assert run(tmp_path / "parts", 2, command, "0.5 6") == 143
    assert run(tmp_path / "parts", 3, command) == 0
    assert results(tmp_path / "parts") == results(tmp_path / "whole")
    assert len(set(results(tmp_path / "whole").values())) == 2
