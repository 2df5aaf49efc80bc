"""Several trainings of one job by real libraries give what each gives alone, stopped and started again or not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import reshape_hooks
from tests.depth import deep
from tests.interpreters import python_with

SCRIPT = Path(__file__).parent / "scripts" / "sweep.py"
STARTUP = Path(reshape_hooks.__file__).parent / "startup"
MODULES = {"elastic": "torch", "transformers": "transformers", "lightning": "lightning"}
RATES = ("0.1", "0.01")


def run(folder: Path, generation: int, library: str, shell: str, stop: str = "") -> int:
    """Run a job: in `shell` the word TRAIN stands for the script with its library."""
    python = python_with(MODULES[library])
    if python is None or not python_with("transformers"):
        pytest.skip(f"{MODULES[library]} is not installed: make test-frameworks")
    folder.mkdir(exist_ok=True)
    given = {
        "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(STARTUP), "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "", "RESHAPE_JOB_ID": "sweep", "RESHAPE_CHECKPOINTS": str(folder / "saved"),
        "RESHAPE_ANNOUNCE": str(folder / "announce"), "RESHAPE_GENERATION": str(generation), "STOP": stop,
        "HF_HUB_OFFLINE": "1", "RESHAPE_MTBF_S": "0",
    }  # fmt: skip
    command = shell.replace("TRAIN", f"{python} {SCRIPT} {library}")
    ended = subprocess.run(command, shell=True, cwd=folder, env=given, capture_output=True, text=True, check=False)
    assert "reshape:" not in ended.stderr, ended.stderr
    return ended.returncode


def results(folder: Path) -> dict[str, str]:
    return {path.name.partition("-")[2]: path.read_text() for path in folder.glob("result-*")}


@pytest.mark.parametrize("library", [deep(name) for name in MODULES])
def test_trainings_one_after_the_other_and_side_by_side_give_what_each_gives_alone(
    tmp_path: Path, library: str
) -> None:
    alone: dict[str, str] = {}
    for rate in RATES:
        assert run(tmp_path / rate, 1, library, f"TRAIN {rate}") == 0
        alone |= results(tmp_path / rate)
    assert alone["0.1"] != alone["0.01"]
    after = f"set -e; for rate in {' '.join(RATES)}; do TRAIN $rate; done"
    assert run(tmp_path / "after", 1, library, after, "0.01 4") == 143
    assert run(tmp_path / "after", 2, library, after) == 0
    assert results(tmp_path / "after") == alone
    beside = "TRAIN 0.1 & first=$!; TRAIN 0.01 & second=$!; wait $first; wait $second"
    run(tmp_path / "beside", 1, library, beside, "0.01 4")
    assert run(tmp_path / "beside", 2, library, beside) == 0
    assert results(tmp_path / "beside") == alone


@pytest.mark.parametrize("library", [deep("elastic"), "transformers", deep("lightning")])
def test_one_script_that_skips_what_has_a_result_ends_as_undisturbed(tmp_path: Path, library: str) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(whole, 1, library, "TRAIN 0.1 0.01 0.001") == 0
    assert run(parts, 1, library, "TRAIN 0.1 0.01 0.001", "0.01 4") == 143
    assert run(parts, 2, library, "TRAIN 0.1 0.01 0.001") == 0
    assert results(parts) == results(whole)
