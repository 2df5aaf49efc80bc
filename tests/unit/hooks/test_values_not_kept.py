"""A training that changes a list which cannot be kept is not announced as one that resumes, and is told why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hooks.test_not_given import ended

LOOP = """
import logging, os, threading, numpy
class Counts:
    def __init__(self): self.steps = 0
state = reshape_hooks.Elastic(given=given)
locks, files, loggers, rules = [threading.Lock()], [], [], {{"f": abs}}
mixed = [threading.Lock(), 0.5, [], numpy.zeros(3), Counts(), logging.getLogger()]
in_a_dictionary = {{"lock": threading.Lock(), "best": 0.5}}
long, rows = [(0,)] * 150_000, [open(os.devnull, 'w'), 0]
for epoch in state.epochs(3):
    of_epoch = [threading.Lock(), 3 * epoch]
    for number in state.batches([1, 2, 3]):
        given.step()
        {}
print(locks, files, loggers, rules, mixed, in_a_dictionary, rows, len(long), given.numbers)
"""
LOST = {
    "another one in a list": ("locks.append(threading.Lock())", "locks"),
    "another list": ("locks = [*locks, threading.Lock()]", "locks"),
    "a number beside it": ("mixed[1] += number", "mixed"),
    "a number beside a file": ("rows[1] += number", "rows"),
    "a list within": ("mixed[2].append(number)", "mixed"),
    "an array within": ("mixed[3][1] += number", "mixed"),
    "an object of the script within": ("mixed[4].steps += 1", "mixed"),
    "at the end of a long list": ("long[-1] = (number,)", "long"),
    "a function without a name": ("rules['f'] = lambda step: step", "rules"),
    "made in an epoch, and changed in it": ("of_epoch[1] += 1; assert of_epoch", "of_epoch"),
}
KEPT = {
    "what does not change": "assert locks and mixed and long and rows",
    "a number that is worked out again": "mixed[1] = number / (2 * number)",
    "what each step makes": "made = [threading.Lock()]; assert made",
    "what each epoch makes": "assert of_epoch",
    "a number in a dictionary": "in_a_dictionary['best'] += number",
    "loggers": "loggers.append(logging.getLogger(str(number)))",
    "files": "files.append((open(os.devnull, 'w'), 'its name'))",
    "a logger beside what cannot be kept": "mixed[5] = logging.getLogger(str(number))",
}


def last_announced(folder: Path) -> str:
    """Return what a training last said of its stops, before its end."""
    lines = (folder / "announce").read_text().splitlines()
    return [line for line in lines if not line.startswith("ended")][-1]


@pytest.mark.parametrize(("change", "name"), LOST.values(), ids=LOST)
def test_what_changes_and_cannot_be_kept_is_named_and_withdraws_the_announcement(
    change: str, name: str, tmp_path: Path
) -> None:
    printed, told = ended(tmp_path, change, LOOP)
    why = (
        "could not be saved and goes on: {} of <module> changes during training, and a restart would reset it, because"
    )
    assert why.format(name) in told
    assert "[9]" in printed.splitlines()[-1], "it trains to its end"
    assert "withdrawn:" in (tmp_path / "announce").read_text()


@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_what_stays_or_is_made_again_is_no_reason_to_keep_gpus(change: str, tmp_path: Path) -> None:
    _, told = ended(tmp_path, change, LOOP)
    assert not told
    assert last_announced(tmp_path).startswith("SIGUSR1")
