"""A Keras script that knows nothing of us is resized while it trains, by the coordinator, and loses no step."""

from __future__ import annotations

from pathlib import Path

import pytest

from reshape.client import CoordinatorRefused
from tests.e2e.up import Up, running, wait_for
from tests.interpreters import python_with

SCRIPT = Path(__file__).parent / "ordinary" / "keras_fit.py"
PYTHON = python_with("tensorflow")
TENSORFLOW_S = 300.0  # for its import, four times, on a machine with other things to do
NAME = "plain"
SHAPES = [4, 2, 1, 4]


def asked(up: Up, gpus: int) -> bool:
    """Whether the operator's wish was taken; not while the coordinator writes down something else of this job."""
    try:
        return bool(up.client.reshape(NAME, gpus))
    except CoordinatorRefused as refusal:
        assert refusal.status == 409, refusal
        return False


@pytest.mark.skipif(PYTHON is None, reason="TensorFlow is not installed")
def test_an_unchanged_keras_fit_is_reshaped_and_does_each_step_and_each_epoch_once(tmp_path: Path) -> None:
    lines, end = tmp_path / "lines", tmp_path / "end"
    job = {
        "job_id": NAME, "state": "submitted", "job_type": "digits-numpy", "iterations": 200_000,
        "command": [PYTHON, str(SCRIPT), str(lines), str(end)], "num_gpus": 4, "optional_num_gpus": [1, 2, 4],
    }  # fmt: skip
    slow = {"RESHAPE_GRACE_S": "30", "RESHAPE_FIRST_STEP_TIMEOUT_S": "120"}
    with running(tmp_path / "state", "4xV100", **slow) as up:
        up.client.submit(job)
        wait_for(lambda: up.job(NAME).get("resumes") == "hook", TENSORFLOW_S, "its hook announces itself")
        for number, gpus in enumerate(SHAPES[1:], 2):
            wait_for(lambda n=gpus: asked(up, n), what=f"it may have {gpus} GPUs")
            wait_for(lambda n=number: len(up.shapes(NAME)) == n, TENSORFLOW_S, f"it trains on {gpus} GPUs")
        end.touch()
        done = up.until(NAME, "completed", TENSORFLOW_S)
        assert up.shapes(NAME) == SHAPES
        steps = up.steps(NAME)
        assert steps == list(range(1, len(steps) + 1))
        assert up.violations() == []
        *numbers, last = lines.read_text().split()
        assert numbers == [str(n) for n in range(1, len(numbers) + 1)] and last == "end"
        assert done["reshapes"] == 3 and not done.get("lost")
