"""What a loop changes in modules that its script imports goes on after a stop; what may not be kept is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import python_of
from tests.unit.hooks.test_elastic import BEGIN, STARTUP

HELPER = """
import collections, enum, json, os, random
from time import time as now
START = os.environ["RESHAPE_GENERATION"]
n, best, history, seen = 0, float("inf"), [], collections.Counter()
rng = random.Random(7)
class Meter:
    total = 0
    def add(self, value):
        Meter.total += value
        self.last = value
meter = Meter()
def count(step):
    global n, best
    n += 1
    best = min(best, rng.random())
    history.append((step, rng.random()))
    seen[step % 2] += 1
    meter.add(step)
"""
COUNTS = """
import helper, inner.deep
for step in state.steps(6):
    work(step)
    helper.count(step)
    inner.deep.lowest -= 1
    helper.history_of_main = helper.history
print('end', helper.n, helper.best, helper.history, sorted(helper.seen.items()), helper.Meter.total, helper.meter.last)
print(inner.deep.lowest, inner.deep.names, helper.history_of_main is helper.history)
print(helper.START == os.environ["RESHAPE_GENERATION"])
"""
LATER = """
def main():
    for step in state.steps(6):
        work(step)
        import helper
        helper.count(step)
    print('end', helper.n, helper.history, helper.START == os.environ["RESHAPE_GENERATION"])
main()
"""
POOL = """
import concurrent.futures
ready = False
tries = 0
pool = None
def get():
    global pool, ready, tries
    tries += 1
    if not ready:
        pool = concurrent.futures.ThreadPoolExecutor(1)
        ready = True
    return pool
"""
USES_POOL = """
import helper
for step in state.steps(6):
    work(step)
    print('squared', helper.get().submit(pow, step, 2).result())
"""
NEVER_LOADED = """
import importlib.util
def lazy(name):
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
in_a_variable = lazy('loud')
in_a_list = [lazy('louder')]
def main():
    class Stats:
        count = 0
    stats = None
    for step in state.steps(6):
        stats = stats or Stats()
        stats.count += step
        work(step)
    print('end', stats.count)
main()
"""
READS = """
import helper
for step in state.steps(6):
    work(step)
    helper.following()
print('end')
"""
ITERATORS = {
    "a generator": "it = (one for one in [5] * 100)\ndef following(): return next(it)",
    "a list": "it = iter([5] * 100)\ndef following(): return next(it)",
    "numbered": "it = enumerate([5] * 100)\ndef following(): return next(it)",
    "in pairs": "it = zip([5] * 100, [6] * 100)\ndef following(): return next(it)",
    "a count": "import itertools\nit = itertools.count()\ndef following(): return next(it)",
    "a file": "it = open(__file__)\ndef following(): return it.read(1)",
    "made in the loop": (
        "it = None\ndef following():\n    global it\n    it = it or iter([5] * 100)\n    return next(it)"
    ),
}
UNREAD = """
import itertools
it, numbers = (one for one in [5] * 100), itertools.count()
source = open(__file__)
next(numbers)
def following(): return None
"""


def run(
    folder: Path, files: dict[str, str], script: str, generation: int, stop: object = None, python: str = sys.executable
) -> tuple[list[str], str]:
    """Return the lines that it prints, the last of them its exit status, and what it is told."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "STOP": str(stop), "RESHAPE_JOB_ID": "loop"}
    env |= {"RESHAPE_CHECKPOINTS": str(folder / "saved"), "RESHAPE_GENERATION": str(generation)}
    env |= {"RESHAPE_ANNOUNCE": str(folder / "announce"), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [python, "-c", f"import sys\n{BEGIN}{script}"]
    ended = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return [*ended.stdout.splitlines(), str(ended.returncode)], ended.stderr


def without_stops_and_with(
    folder: Path, files: dict[str, str], script: str, python: str = sys.executable
) -> tuple[list[str], list[str]]:
    """Return what it prints from its end on, run as a whole and stopped twice."""
    whole, errors = run(folder / "whole", files, script, 1, python=python)
    assert not errors
    for generation, stop in enumerate((1, 3), start=1):
        stopped, errors = run(folder / "parts", files, script, generation, stop, python)
        assert (stopped[-1], errors) == ("143", "")
    resumed, errors = run(folder / "parts", files, script, 3, python=python)
    assert not errors
    return [lines[next(k for k, line in enumerate(lines) if line.startswith("end")) :] for lines in (whole, resumed)]


@pytest.mark.parametrize("python", ["3.8", "3.13", "ours"])
def test_variables_of_imported_modules_go_on(tmp_path: Path, python: str) -> None:
    files = {"helper.py": HELPER, "inner/__init__.py": "", "inner/deep.py": "lowest, names = 10, {'a': 1}\n"}
    program = sys.executable if python == "ours" else python_of(python)
    whole, resumed = without_stops_and_with(tmp_path, files, COUNTS, program)
    assert resumed == whole
    assert resumed[-3:] == ["4 {'a': 1} True", "True", "0"], "what the loop does not change is of the new start"


@pytest.mark.parametrize("python", ["3.8", "3.13", "ours"])
def test_those_of_a_module_that_the_loop_imports_go_on_too(tmp_path: Path, python: str) -> None:
    program = sys.executable if python == "ours" else python_of(python)
    whole, resumed = without_stops_and_with(tmp_path, {"helper.py": HELPER}, LATER, program)
    assert resumed == whole
    assert resumed[0].endswith("True")


def test_a_module_that_puts_an_object_in_its_place_is_imported_in_the_loop(tmp_path: Path) -> None:
    settings = {"settings.py": "import sys\nclass Settings:\n    rate = 3\nsys.modules[__name__] = Settings()\n"}
    script = "for step in state.steps(3):\n    work(step)\n    import settings\nprint('end', settings.rate)\n"
    lines, errors = run(tmp_path, settings, script, 1)
    assert (lines[-2:], errors) == (["end 3", "0"], "")


def test_a_module_that_made_what_cannot_be_kept_is_left_alone_which_is_said_once(tmp_path: Path) -> None:
    stopped, errors = run(tmp_path, {"helper.py": POOL}, USES_POOL, 1, 3)
    assert stopped[-1] == "143"
    assert errors.count("after a stop ready, tries of the module helper begin anew") == 1
    assert "no pool there" in errors
    resumed, _ = run(tmp_path, {}, USES_POOL, 2)
    assert [line for line in resumed if line.startswith("squared")] == ["squared 16", "squared 25"], resumed


def test_a_module_that_waits_to_be_used_is_not_loaded(tmp_path: Path) -> None:
    loud = {"loud.py": "print('loaded')\n", "louder.py": "print('loaded')\n"}
    whole, resumed = without_stops_and_with(tmp_path, loud, NEVER_LOADED)
    assert whole == resumed == ["end 15", "0"]
    lines, _ = run(tmp_path / "whole", {}, NEVER_LOADED, 2)
    assert "loaded" not in lines
    lines, _ = run(tmp_path / "looked_at", loud, NEVER_LOADED, 1, 3)
    more, _ = run(tmp_path / "looked_at", loud, NEVER_LOADED, 2)
    assert "loaded" not in [*lines, *more], "also where a class within a function is looked for"


@pytest.mark.parametrize("helper", ITERATORS.values(), ids=ITERATORS)
def test_an_iterator_of_a_module_that_the_loop_reads_keeps_the_training_from_being_stopped(
    tmp_path: Path, helper: str
) -> None:
    lines, errors = run(tmp_path, {"helper.py": helper}, READS, 1)
    assert lines[-2:] == ["end", "0"]
    assert "the place of it in the module helper is not found again" in errors
    assert "143" not in (tmp_path / "announce").read_text()


def test_one_that_the_loop_does_not_read_does_not(tmp_path: Path) -> None:
    whole, resumed = without_stops_and_with(tmp_path, {"helper.py": UNREAD}, READS)
    assert whole == resumed == ["end", "0"]


NOT_GIVEN = """
import helper
for step in state.steps(6):
    work(step)
    helper.other.step()
print('end')
"""
OTHER = """
class Part:
    numbers = (0,)
    def __init__(self): self.numbers = [0]
    def state_dict(self): return {"numbers": self.numbers}
    def load_state_dict(self, state): self.numbers = state["numbers"]
    def step(self): self.numbers = [one + 1 for one in self.numbers]
other = Part()
"""
REBOUND = """
import helper
helper.params = {"w": 1.0, "all": [0.0] * 2000}
state = reshape_hooks.Elastic(params=helper.params)
for step in state.steps(6):
    work(step)
    helper.params = {"w": helper.params["w"] * 2, "all": [one + 1 for one in helper.params["all"]]}
print('end', helper.params["w"], sum(helper.params["all"]))
"""


def test_an_object_of_a_module_that_changes_and_was_not_given_is_named(tmp_path: Path) -> None:
    lines, errors = run(tmp_path, {"helper.py": OTHER}, NOT_GIVEN, 1)
    assert lines[-2:] == ["end", "0"]
    assert "other (Part) changes during training" in errors


def test_a_dictionary_of_a_module_that_each_step_makes_anew_goes_on(tmp_path: Path) -> None:
    whole, resumed = without_stops_and_with(tmp_path, {"helper.py": ""}, REBOUND)
    assert whole == resumed
