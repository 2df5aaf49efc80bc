"""An iterator that the script holds in a list or an object is refused once the loop reads it, and only then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import python_of
from tests.unit.hooks.test_elastic import ends, steps
from tests.unit.hooks.test_script_modules import run, without_stops_and_with

FEED = """
class Feed:
    def __init__(self, numbers): self.it = iter(numbers)
    def __iter__(self): return self
    def __next__(self): return next(self.it)
"""
SLOTTED = "class Feed:\n    __slots__ = ('it',)\n    def __init__(self, numbers): self.it = iter(numbers)\n"
TRAINER = """
class Trainer:
    def __init__(self): self.feed = Feed(range(100))
    def run(self):
        for step in state.steps(6):
            drawn["numbers"].append(next(self.feed))
            work(step)
Trainer().run()
"""
READ = "for step in state.steps(6):\n    drawn['numbers'].append({})\n    work(step)\n"
HELD = {
    "a list": ("its = [iter(range(9)), iter(range(9))]\n" + READ.format("next(its[step % 2])"), "its[0]"),
    "a dictionary": ("its = {'a': (iter(range(9)),)}\n" + READ.format("next(its['a'][0])"), "its['a'][0]"),
    "an object in an object": (FEED + TRAINER, "self.feed.it"),
    "an object with slots": (SLOTTED + "feed = Feed(range(9))\n" + READ.format("next(feed.it)"), "feed.it"),
    "its own method": (FEED + "draw = Feed(range(9)).__next__\n" + READ.format("draw()"), "draw.it"),
    "a cycle": (
        "import itertools\nits = [itertools.cycle(iter([1, 2]))]\n" + READ.format("next(its[0])"),
        "its[0]",
    ),
    "values of a dictionary": ("its = [iter({1: 2, 3: 4}.values())]\n" + READ.format("next(its[0], 0)"), "its[0]"),
}
OF_MODULE = "import helper\nfeed = helper.Feed(range(9))\n" + READ.format("next(feed)") + "print('end')\n"
LATER = """
its = {}
for step in state.steps(6):
    if step == 2:
        its["aux"] = iter(range(9))
    drawn["numbers"].append(next(its["aux"]) if its else 0)
    work(step)
print('end')
"""
NOT_READ = """
import itertools
def numbers():
    yield 1
done = []
class Feed:
    def __init__(self): self.it, self.all = iter([1, 2]), [itertools.cycle([1]), zip([1], [2])]
feed = Feed()
for step in state.steps(6):
    part = numbers()
    done.append((list(part), list(range(step)))[1])
    last = {"finished": part, "pairs": zip(iter([]), iter([])), "none left": iter([])}
    work(step)
    print("last", len(last))
print('end', done)
"""
PREPARED = """
class Feed: pass
feed = Feed()
for epoch in state.epochs(3):
    feed.it = iter(range(9))
    for number in state.batches([1, 2, 3]):
        {}
        work(epoch * 3 + number)
    print("left", list(feed.it) == list(range(9)))
print('end', drawn)
"""


@pytest.mark.parametrize(("script", "name"), HELD.values(), ids=HELD)
def test_one_that_is_held_elsewhere_and_read_ends_the_script_at_its_first_step(
    tmp_path: Path, script: str, name: str
) -> None:
    ended = ends(tmp_path, script)
    assert ended.returncode == 1, ended.stderr
    assert f"because the place of {name}" in ended.stderr
    assert "is not found again: let state.batches(...) draw" in ended.stderr
    assert len(steps(ended.stdout.splitlines())) <= 1


@pytest.mark.parametrize("python", ["3.8", "3.13", "ours"])
def test_one_of_a_class_of_the_scripts_module_does_too(tmp_path: Path, python: str) -> None:
    program = sys.executable if python == "ours" else python_of(python)
    lines, errors = run(tmp_path, {"helper.py": FEED}, OF_MODULE, 1, python=program)
    assert lines[-1] == "1"
    assert "because the place of feed.it is not found again" in errors


def test_one_that_the_loop_makes_later_is_named_and_the_training_goes_on(tmp_path: Path) -> None:
    lines, errors = run(tmp_path, {}, LATER, 1, stop=3)
    assert lines[-2:] == ["end", "0"]
    assert "could not be saved and goes on: the place of its['aux'] is not found again after a stop" in errors


@pytest.mark.parametrize("python", ["3.8", "3.13", "ours"])
def test_those_that_are_not_read_or_have_ended_keep_no_training_from_its_stops(tmp_path: Path, python: str) -> None:
    program = sys.executable if python == "ours" else python_of(python)
    whole, resumed = without_stops_and_with(tmp_path, {}, NOT_READ, program)
    assert whole == resumed


def test_one_that_each_epoch_makes_is_refused_only_where_its_batches_read_it(tmp_path: Path) -> None:
    for generation, stop in enumerate((2, 6), start=1):
        lines, errors = run(tmp_path / "unread", {}, PREPARED.format("pass"), generation, stop)
        assert (lines[-1], errors) == ("143", "")
    ended: subprocess.CompletedProcess[str] = ends(tmp_path, PREPARED.format("next(feed.it)"))
    assert "because the place of feed.it is not found again" in ended.stderr
