"""Every model of the zoo trains, is stopped half way, and does the other half when it is started again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from reshape_papers.recordings import saving
from tests.frameworks.test_resumed_exactly import SCRIPTS, STARTUP, WITHIN_S
from tests.interpreters import python_with

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "examples" / "zoo"
MODELS = ("vae", "gru", "rnn", "birnn", "dynamic-rnn", "lstm", "lenet", "resnet", "inception")
HALF = "5"  # steps


def rows(framework: str, folder: Path, generation: str = "1") -> list[list[str]]:
    """Run the models with this framework as that generation; return what is printed of each."""
    python = python_with(framework)
    if python is None:
        pytest.skip(f"{framework} is not installed: make test-frameworks")
    given = {
        "PYTHONPATH": os.pathsep.join(map(str, (STARTUP, ROOT, ZOO))), "PYTHONUNBUFFERED": "1", "HOME": str(folder),
        "CUDA_VISIBLE_DEVICES": "", "RESHAPE_JOB_ID": "zoo", "RESHAPE_CHECKPOINTS": str(folder),
        "RESHAPE_ANNOUNCE": str(folder / "announce"), "RESHAPE_GENERATION": generation,
    }  # fmt: skip
    argv = [python, str(SCRIPTS / f"{framework}_zoo_runs.py"), str(folder), *MODELS]
    ended = subprocess.run(argv, env=os.environ | given, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    found = [line.split()[1:] for line in ended.stdout.splitlines() if line.startswith("zoo")]
    assert [name for name, *_ in found] == list(MODELS)
    return [row[1:] for row in found]


def test_a_stopped_pytorch_model_has_its_times_to_save_and_to_resume_measured() -> None:
    python = python_with("torch")
    if python is None:
        pytest.skip("torch is not installed: make test-frameworks")
    found = saving.measure("gru", "torch", python, ["--epochs", "2", "--samples", "256"], [0.5])
    assert len(found.at) == 1 and 0.5 <= found.at[0] < 1
    assert found.save_cpu_s[0] > 0 and found.resume_cpu_s[0] > 0


@pytest.mark.deep
def test_every_keras_model_is_stopped_half_way_and_does_the_other_half_when_started_again(tmp_path: Path) -> None:
    assert rows("keras", tmp_path, "1") == [[HALF]] * len(MODELS)
    for steps, loss, later in rows("keras", tmp_path, "2"):
        assert steps == HALF
        assert float(later) < float(loss)


@pytest.mark.deep
def test_every_pytorch_model_is_stopped_half_way_and_does_the_other_half_when_started_again(tmp_path: Path) -> None:
    for loss, later, *steps in rows("torch", tmp_path):
        assert float(later) < 1.2 * float(loss)  # of two batches
        assert steps == [HALF, HALF]
