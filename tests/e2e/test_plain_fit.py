"""A Keras script that knows nothing of us is resized while it trains, by the coordinator, and loses no step."""

from __future__ import annotations

from pathlib import Path

import pytest

from reshape.client import CoordinatorRefused
from tests.e2e.up import Up, running, wait_for
from tests.interpreters import python_with

ORDINARY = Path(__file__).parent / "ordinary"
PYTHON = python_with("tensorflow")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="TensorFlow is not installed")
TENSORFLOW_S = 300.0  # for its import, three times, on a machine with other things to do
NAME = "plain"
SHAPES = [4, 2, 4]


def asked(up: Up, gpus: int) -> bool:
    """Whether the operator's wish was taken; not while the coordinator writes down something else of this job."""
    try:
        return bool(up.client.reshape(NAME, gpus))
    except CoordinatorRefused as refusal:
        assert refusal.status == 409, refusal
        return False


def reshaped(folder: Path, script: str) -> tuple[list[int], list[str], str]:
    """Resize this script while it trains, in a fleet of its own; return steps, lines of its file, its output."""
    lines, end = folder / "lines", folder / "end"
    job = {
        "job_id": NAME, "state": "submitted", "job_type": "digits-numpy", "iterations": 200_000,
        "command": [PYTHON, str(ORDINARY / script), str(lines), str(end)],
        "num_gpus": 4, "optional_num_gpus": [2, 4],
    }  # fmt: skip
    slow = {"RESHAPE_GRACE_S": "30", "RESHAPE_FIRST_STEP_TIMEOUT_S": "120"}
    with running(folder / "state", "4xV100", **slow) as up:
        up.client.submit(job)
        wait_for(lambda: up.job(NAME).get("resumes") == "hook", TENSORFLOW_S, "its hook announces itself")
        for number, gpus in enumerate(SHAPES[1:], 2):
            wait_for(lambda n=gpus: asked(up, n), what=f"it may have {gpus} GPUs")
            wait_for(lambda n=number: len(up.shapes(NAME)) == n, TENSORFLOW_S, f"it trains on {gpus} GPUs")
        end.touch()
        done = up.until(NAME, "completed", TENSORFLOW_S)
        assert up.shapes(NAME) == SHAPES
        assert up.violations() == []
        assert done["reshapes"] == len(SHAPES) - 1 and not done.get("lost")
        steps = up.steps(NAME)
        printed = up.client.output(NAME)
    assert steps == list(range(1, len(steps) + 1))
    return steps, lines.read_text().splitlines(), printed


def test_an_unchanged_keras_fit_is_reshaped_and_does_each_step_and_each_epoch_once(tmp_path: Path) -> None:
    _, (*numbers, last), _ = reshaped(tmp_path, "keras_fit.py")
    assert numbers == [str(n) for n in range(1, len(numbers) + 1)] and last == "end"


@pytest.mark.deep
def test_a_mirrored_strategy_has_as_many_replicas_as_gpus_and_keeps_batch_and_optimizer(tmp_path: Path) -> None:
    steps, (*epochs, last), printed = reshaped(tmp_path, "keras_mirrored.py")
    replicas = [line for line in printed.splitlines() if line.startswith("replicas")]
    assert replicas == [f"replicas {gpus}" for gpus in SHAPES]
    assert epochs == [f"epoch {n} 10" for n in range(1, len(epochs) + 1)]
    assert last == f"iterations {len(steps)}" and len(steps) == 10 * len(epochs)
