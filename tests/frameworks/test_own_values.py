"""What a script's own classes count and collect, and a library does not save, is after a stop as it was before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.depth import deep
from tests.frameworks.test_resumed_exactly import EVALUATES, Script, run, same_weights

LIGHTNING = Script("lightning", "lightning_own.py", 18, None, itself=True)  # and 6 in a second call of `fit`
HUGGING_FACE = Script("transformers", "hf_own.py", 20, None, itself=True)
LOOP = Script("torch", "torch_own.py", 12, None, itself=True)


def tables(folder: Path) -> dict[str, str]:
    """Return the tables that loggers have written, by their path."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.csv")}


@pytest.mark.parametrize(
    ("script", "stops"),
    [
        deep(LIGHTNING, (2, EVALUATES, 17, 21), name="lightning"),
        deep(HUGGING_FACE, (3, EVALUATES, 15), name="hugging-face"),
        pytest.param(LOOP, (2, 8), id="loop"),
    ],
)
def test_lists_counts_and_means_of_the_scripts_own_classes_go_on_after_a_stop(
    script: Script, stops: tuple[str | int, ...], tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    undisturbed = run(script, whole, 1)
    assert undisturbed.status == 0, undisturbed.errors
    assert len(undisturbed.steps) == script.steps + 6 * (script == LIGHTNING), "one stops early, after this many"
    done: list[int] = []
    for generation, stop_at in enumerate([*stops, None], start=1):
        ended = run(script, parts, generation, stop_at)
        assert ended.status == (143 if stop_at else 0), ended.errors
        done += ended.steps
        named = "after a stop figure of History begins anew, because a generator like it cannot be kept"
        assert (named in ended.errors) == (script != LOOP), ended.errors
    assert done == undisturbed.steps, "each step once"
    assert ended.measured == undisturbed.measured
    assert script == LOOP or "true, true]" in ended.measured[0], "time that its callbacks measure goes on, too"
    assert same_weights(script, whole, parts)
    assert tables(parts) == tables(whole), "the same rows, in the same folders"
    assert sorted(path.name for path in parts.glob("logs/*/*")) == sorted(path.name for path in whole.glob("logs/*/*"))
