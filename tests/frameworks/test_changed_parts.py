"""What a loop trains, and by what, is after a stop what it was before it, or the training is not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.test_resumed_exactly import Run, Script, run, same_weights

STEPS = 12
IN_FIRST_EPOCHS, LATER = 5, 8
REFUSED = {
    "another group": "optimizer got parameter groups after it was given to Elastic",
    "another optimizer": "optimizer is now another Adam than the optimizer that Elastic was given",
    "another scheduler": "scheduler is now another ExponentialLR than the scheduler that Elastic was given",
    "another model": "head is now another Linear than the head that Elastic was given",
}


def changing(way: str) -> Script:
    return Script("torch", "torch_changed_parts.py", STEPS, None, (way,), itself=True)


def trained(way: str, folder: Path, *stops: int) -> list[Run]:
    """Run this script until it ends; it asks itself to stop at these steps."""
    script = changing(way)
    return [run(script, folder, number, stop) for number, stop in enumerate([*stops, None], start=1)]


def ends_alike(way: str, whole: Path, parts: Path) -> bool:
    return same_weights(changing(way), whole, parts)


@pytest.mark.parametrize("way", ["thaws", "a model around it", "an optimizer around it"])
def test_what_is_trained_and_what_is_frozen_stays_so(way: str, tmp_path: Path) -> None:
    (undisturbed,) = trained(way, tmp_path / "whole")
    assert undisturbed.status == 0, undisturbed.errors
    *stopped, ended = trained(way, tmp_path / "parts", IN_FIRST_EPOCHS, LATER)
    assert [one.status for one in stopped] == [143, 143]
    assert ended.status == 0, ended.errors
    assert ended.measured == undisturbed.measured
    assert ends_alike(way, tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("way", REFUSED)
def test_what_a_new_start_would_not_make_again_is_said_and_trains_on(way: str, tmp_path: Path) -> None:
    (undisturbed,) = trained(way, tmp_path / "whole")
    assert undisturbed.status == 0, undisturbed.errors
    script = changing(way)
    stopped = run(script, tmp_path / "parts", 1, IN_FIRST_EPOCHS)
    assert stopped.status == 143, "until then it is stopped"
    assert REFUSED[way] not in stopped.errors
    trains_on = run(script, tmp_path / "parts", 2, LATER)
    assert trains_on.status == 0, trains_on.errors
    assert f"this training could not be saved and goes on: {REFUSED[way]}" in trains_on.errors
    assert trains_on.steps[-1] == STEPS
    assert trains_on.measured == undisturbed.measured
    assert ends_alike(way, tmp_path / "whole", tmp_path / "parts")
