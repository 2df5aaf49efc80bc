"""A second loop of one Elastic, which would do nothing, ends with a sentence; one of another Elastic goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hooks.test_elastic import ends, run

VALIDATES = """
for epoch in state.epochs(3):
    for number in state.batches([1, 2, 3]):
        work(epoch * 3 + number)
    for number in {}:
        print("validated", number)
print("end", drawn)
"""
TWO_LOOPS = """
for epoch in state.epochs(2):
    for number in state.batches([1, 2, 3]):
        work(epoch * 3 + number)
{}
for epoch in state.epochs(2):
    for number in state.batches([1, 2, 3]):
        work(6 + epoch * 3 + number)
print("end", drawn)
"""
STOPPED_EARLY = """
for step in state.steps(6):
    work(step)
    if step == 2: break
for step in state.steps(3):
    work(6 + step)
"""
NESTED = "for epoch in state.epochs(2):\n    for step in state.steps(3): work(step)\n"
WITHOUT_EPOCHS = "for epoch in range(2):\n    for step in state.batches([1, 2]): work(step)\n"
LOOPS, BATCHES = "asks one Elastic for a second loop", "asks for state.batches(...) a second time within an epoch"
REFUSED = {
    "a validation": (VALIDATES.format("state.batches([4, 5])"), 3, BATCHES),
    "a second loop": (TWO_LOOPS.format(""), 6, LOOPS),
    "behind one that was left": (STOPPED_EARLY, 2, LOOPS),
    "steps in epochs": (NESTED, 0, LOOPS),
    "without epochs": (WITHOUT_EPOCHS, 2, BATCHES),
}


@pytest.mark.parametrize(("script", "done", "why"), REFUSED.values(), ids=REFUSED)
def test_a_second_loop_that_would_do_nothing_ends_with_a_sentence(
    tmp_path: Path, script: str, done: int, why: str
) -> None:
    ended = ends(tmp_path, script)
    assert ended.returncode == 1
    assert f"Elastic cannot make this training elastic, because its script {why}" in ended.stderr
    assert sum(line.startswith("step=") for line in ended.stdout.splitlines()) == done


ANOTHER = TWO_LOOPS.format("state = reshape_hooks.Elastic(tuned=drawn)")


@pytest.mark.parametrize(
    ("script", "stops"),
    [(VALIDATES.format("[4, 5]"), (2, 8)), (VALIDATES.format("[4, 5]"), (3, 6)), (ANOTHER, (2, 9)), (ANOTHER, (7, 11))],
)
def test_what_the_sentence_asks_for_goes_on_after_each_stop(
    tmp_path: Path, script: str, stops: tuple[int, int]
) -> None:
    whole = run(tmp_path / "whole", script, 1)
    for generation, stop in enumerate(stops, start=1):
        assert run(tmp_path / "parts", script, generation, stop)[-1] == "143"
    assert run(tmp_path / "parts", script, 3)[-2:] == whole[-2:]
    assert whole[-1] == "0"
