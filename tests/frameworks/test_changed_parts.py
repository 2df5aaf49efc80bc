"""What a loop trains, and by what, is after a stop what it was before it, or the training is not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.depth import deep
from tests.frameworks.test_resumed_exactly import Run, Script, run, same_weights

STEPS = 12
IN_FIRST_EPOCHS, LATER = 5, 8
LATER_GROUPS = "got parameter groups after training began"
BUILT = "is built otherwise than when training began"
LOOP = Script("torch", "torch_changed_parts.py", STEPS, None, itself=True)
HUGGING_FACE = LOOP._replace(module="transformers", file="hf_changed_parts.py")
LIGHTNING = LOOP._replace(module="lightning", file="lightning_changed_parts.py")


KEPT = [
    (LOOP, "thaws"),
    deep(LOOP, "thaws what was frozen behind it"),
    deep(LOOP, "evaluates"),
    deep(LOOP, "shaped later"),
    deep(LOOP, "a model around it"),
    deep(LOOP, "an optimizer around it"),
    deep(HUGGING_FACE, "thaws"),
    deep(LIGHTNING, "thaws"),
    deep(LIGHTNING, "evaluates"),
    deep(LIGHTNING, "finetuning"),
    deep(LIGHTNING, "accumulates"),
    deep(LIGHTNING, "averages"),
    deep(LIGHTNING, "by hand"),
    deep(LIGHTNING, "loaders made anew"),
    deep(LIGHTNING, "loaders made once"),
]
REFUSED = [
    (LOOP, "another group", f"optimizer {LATER_GROUPS}"),
    deep(LOOP, "another layer", f"body {BUILT} (its layer '0' is another Linear)"),
    deep(LOOP, "pruned", f"head {BUILT} (its layer the whole has other tensors)"),
    deep(LOOP, "of another type", f"body {BUILT} (its layer '0' has other tensors, of torch.float64 in place of"),
    deep(LOOP, "another optimizer", "optimizer is now another Adam than the optimizer that Elastic was given"),
    deep(LOOP, "another scheduler", "scheduler is now another ExponentialLR than the scheduler that Elastic was given"),
    deep(LOOP, "another model", "head is now another Linear than the head that Elastic was given"),
    (LOOP, "one that was not given", "beside (Linear) changes during training"),
    deep(HUGGING_FACE, "pruned", f"model {BUILT} (its layer 'head'"),
    deep(LIGHTNING, "pruned", f"model {BUILT} (its layer 'head'"),
    deep(HUGGING_FACE, "another group", f"optimizer {LATER_GROUPS}"),
    deep(LIGHTNING, "another group", f"optimizer 0 {LATER_GROUPS}"),
]


def trained(script: Script, folder: Path, *stops: int) -> list[Run]:
    """Run this script until it ends; it asks itself to stop at these steps."""
    return [run(script, folder, number, stop) for number, stop in enumerate([*stops, None], start=1)]


@pytest.mark.parametrize(("script", "way"), KEPT)
def test_what_is_trained_and_what_is_frozen_stays_so(script: Script, way: str, tmp_path: Path) -> None:
    script = script._replace(arguments=(way,))
    (undisturbed,) = trained(script, tmp_path / "whole")
    assert undisturbed.status == 0, undisturbed.errors
    *stopped, ended = trained(script, tmp_path / "parts", IN_FIRST_EPOCHS, LATER)
    assert [one.status for one in stopped] == [143, 143], stopped[-1].errors
    assert ended.status == 0, ended.errors
    assert ended.measured == undisturbed.measured
    assert same_weights(script, tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize(("script", "way", "why"), REFUSED)
def test_what_a_new_start_would_not_make_again_is_said_and_trains_on(
    script: Script, way: str, why: str, tmp_path: Path
) -> None:
    script = script._replace(arguments=(way,))
    (undisturbed,) = trained(script, tmp_path / "whole")
    assert undisturbed.status == 0, undisturbed.errors
    stopped = run(script, tmp_path / "parts", 1, IN_FIRST_EPOCHS)
    assert stopped.status == 143, "until then it is stopped"
    assert why not in stopped.errors
    trains_on = run(script, tmp_path / "parts", 2, LATER)
    assert f"this training could not be saved and goes on: {why}" in trains_on.errors
    assert trains_on.steps[-1] == STEPS
    ended = trains_on
    if trains_on.status == 143:  # the stop was tried again, a second later, once the result could be saved
        ended = run(script, tmp_path / "parts", 3)
        assert ended.steps == []
    assert ended.status == 0, ended.errors
    assert ended.measured == undisturbed.measured
    assert same_weights(script, tmp_path / "whole", tmp_path / "parts")
