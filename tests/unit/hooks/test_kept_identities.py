"""What is one object in several variables is one object after a stop, and what is not stays apart."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reshape_hooks.adapters import variables
from tests.interpreters import python_of
from tests.unit.hooks.test_elastic import BEGIN, STARTUP

EPISODES = """
episodes = []
episode = None
for step in state.steps(8):
    if step % 4 == 0:
        episode = {"start": step, "rewards": []}
        episodes.append(episode)
    work(step)
    episode["rewards"].append(step)
print("end", episodes, episode is episodes[-1])
"""
TREE = """
class Node:
    def __init__(self, parent=None):
        self.parent, self.children, self.n = parent, {}, 0
def size(node):
    return 1 + sum(size(child) for child in node.children.values())
root = Node()
for step in state.steps(8):
    node = root
    while node.children and random.random() < 0.7:
        node = random.choice(list(node.children.values()))
    leaf = Node(node)
    node.children[len(node.children)] = leaf
    work(step)
    while leaf:
        leaf.n += 1
        leaf = leaf.parent
print("end", size(root), root.n, [child.n for child in root.children.values()])
"""
CYCLES = """
class Path(list):
    __slots__ = ("whole",)
ring, path, linked = [0], Path(), None
table = {}
for step in state.steps(8):
    if step == 0:
        ring.append(ring)
        table["itself"] = table
    linked = {"before": linked, "path": path}
    path.append(linked)
    path.whole = path
    work(step)
    ring[0] += 1
    ring[1][0] += 1
    table[step] = linked
print("end", ring[0], ring[1] is ring, table["itself"] is table, len(table))
print(path.whole is path, len(path), all(one["path"] is path for one in path))
print(all(after["before"] is before for before, after in zip(path, path[1:])), table[7] is linked is path[-1])
"""
FUNCTIONS = """
import helper
log = helper.log
class Trainer:
    def __init__(self, log):
        self.log, self.best = log, None
trainer = Trainer(log)
def inner(history, trainer):
    seen = []
    for step in state.steps(8):
        if step == 0:
            seen.append({"n": 0})
            history.append(seen[0])
            trainer.best = helper.best = seen[0]
        work(step)
        seen[0]["n"] += 1
        helper.log.append(step)
    print("end", history, seen, trainer.best, helper.best)
    print(history[0] is seen[0] is trainer.best is helper.best, trainer.log is log is helper.log, log)
def outer():
    history = []
    def count():
        return len(history)
    inner(history, trainer)
    print(count(), history)
outer()
"""
ONE_CHANGED = """
args = {"job": os.environ["RESHAPE_GENERATION"], "tasks": [["a", 0], ["b", 0]]}
one, other = [], []
apart = together = []
task = args["tasks"][0]
class Run:
    def __init__(self, args):
        self.args, self.n = args, 0
run = None
for step in state.steps(8):
    if step == 0:
        run = Run(args)
        other = one
        apart = []
        task = args["tasks"][1]
    work(step)
    run.n += 1
one.append(1)
apart.append(2)
print("end", other, together, apart, run.args is args, args["job"] == os.environ["RESHAPE_GENERATION"], run.n)
print(task is args["tasks"][1], args["tasks"])
"""
ANOTHER_IN_ITS_PLACE = """
first, second = {"name": "first"}, {"name": "second"}
queue = [first, second]
current = queue[0]
for step in state.steps(8):
    work(step)
    queue.reverse()
    current = {"name": "of step", "n": step}
    for one in queue:
        one["n"] = one.get("n", 0) + len(one["name"])
print("end", first, second, [one["name"] for one in queue], queue[0] is first, queue[1] is second, current)
"""
IN_EPOCHS = """
episodes, current = [], None
for epoch in state.epochs(3):
    current = []
    episodes.append(current)
    for number in state.batches([1, 2, 3]):
        work(epoch * 10 + number)
        current.append(number)
print("end", episodes, current is episodes[-1])
"""
SCRIPTS = {
    "episodes": EPISODES,
    "a tree": TREE,
    "cycles": CYCLES,
    "functions": FUNCTIONS,
    "one changed": ONE_CHANGED,
    "another in its place": ANOTHER_IN_ITS_PLACE,
}
HELPER = "log, best = [], None\n"


LOCAL = """
import collections
def main():
    class Stats:
        class Best:
            pass
        def __init__(self):
            self.n, self.best, self.first = 0, Stats.Best(), Row(1, [])
    Row = collections.namedtuple("Row", "n seen")
    Row.__qualname__ = "main.<locals>.Row"
    stats, found = None, []
    def train():
        nonlocal stats
        for step in state.steps(8):
            if step % 3 == 0:
                stats = Stats()
                found.append(stats)
            stats.n += 1
            stats.best.step = step
            stats.first.seen.append(step)
            work(step)
    train()
    print("end", [(one.n, one.best.step, one.first) for one in found], stats is found[-1], type(stats) is Stats)
main()
"""
OF_A_FUNCTION_THAT_HAS_ENDED = """
def make():
    class Meter:
        def __init__(self): self.n = 0
    return Meter()
def main():
    held, meters = [make()], {}
    for step in state.steps(8):
        if step == 1:
            meters[step] = make()
        work(step)
        held[0].n += 1
    print("end", held[0].n, len(meters))
main()
"""

SHRINKS = """
left, taken = set(range(1000)), []
for step in state.steps(8):
    picked = random.sample(sorted(left), 120)
    left.difference_update(picked)
    taken += picked[:5]
    work(step)
print("end", sorted(left), taken)
print(list(left) == sorted(left))
"""


def run(
    folder: Path, script: str, generation: int, stop: object = None, python: str = sys.executable
) -> tuple[list[str], str]:
    """Return the lines that it prints, the last of them its exit status, and what it is told."""
    folder.mkdir(exist_ok=True)
    (folder / "helper.py").write_text(HELPER)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "STOP": str(stop), "RESHAPE_JOB_ID": "loop"}
    env |= {"RESHAPE_CHECKPOINTS": str(folder / "saved"), "RESHAPE_GENERATION": str(generation)}
    env |= {"PYTHONHASHSEED": "7", "PYTHONDONTWRITEBYTECODE": "1"}  # the first as the shim sets it
    argv = [python, "-c", f"{BEGIN}{SEED}{script}"]
    ended = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return [*ended.stdout.splitlines(), str(ended.returncode)], ended.stderr


SEED = "random.seed(5)\n"


def without_stops_and_with(
    folder: Path, script: str, stops: tuple[int, ...], python: str = sys.executable
) -> tuple[list[str], list[str]]:
    """Return what it prints from its end on, run as a whole and stopped at these steps."""
    whole, errors = run(folder / "whole", script, 1, python=python)
    assert not errors
    for generation, stop in enumerate(stops, start=1):
        stopped, errors = run(folder / "parts", script, generation, stop, python)
        assert (stopped[-1], errors) == ("143", "")
    resumed, errors = run(folder / "parts", script, len(stops) + 1, python=python)
    assert not errors
    return [lines[next(k for k, line in enumerate(lines) if line.startswith("end")) :] for lines in (whole, resumed)]


@pytest.mark.parametrize("stops", [(2, 5), (0, 7)], ids=["within", "at-its-ends"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_what_is_one_object_is_one_after_a_stop(tmp_path: Path, script: str, stops: tuple[int, ...]) -> None:
    whole, resumed = without_stops_and_with(tmp_path, script, stops)
    assert resumed == whole
    assert whole[-1] == "0"


@pytest.mark.parametrize("python", ["3.8", "3.13"])
@pytest.mark.parametrize("script", [TREE, FUNCTIONS], ids=["a tree", "functions"])
def test_it_is_so_in_each_python(tmp_path: Path, script: str, python: str) -> None:
    whole, resumed = without_stops_and_with(tmp_path, script, (2, 5), python_of(python))
    assert resumed == whole


@pytest.mark.parametrize("stops", [(2, 12), (1, 3), (3, 21)], ids=["within", "one-epoch", "between"])
def test_it_is_so_in_an_epoch_that_a_stop_breaks_off(tmp_path: Path, stops: tuple[int, ...]) -> None:
    whole, resumed = without_stops_and_with(tmp_path, IN_EPOCHS, stops)
    assert resumed == whole == ["end [[1, 2, 3], [1, 2, 3], [1, 2, 3]] True", "0"]


@pytest.mark.parametrize("python", ["3.8", "3.13", "ours"])
def test_objects_of_a_class_within_a_function_go_on(tmp_path: Path, python: str) -> None:
    program = sys.executable if python == "ours" else python_of(python)
    whole, resumed = without_stops_and_with(tmp_path, LOCAL, (1, 4), program)
    assert resumed == whole
    assert whole[0].endswith("True True")


def test_those_whose_class_a_new_start_does_not_find_are_named_and_do_not_end_by_a_stop(tmp_path: Path) -> None:
    _, errors = run(tmp_path, OF_A_FUNCTION_THAT_HAS_ENDED, 1, 0)
    assert not errors, "what each start makes itself is filled"
    lines, errors = run(tmp_path, OF_A_FUNCTION_THAT_HAS_ENDED, 2, 3)
    why = "because a new start does not find the class make.<locals>.Meter: define it outside of that function"
    assert errors.count(f"meters of main changes during training, and a restart would reset it, {why}") == 1
    assert (lines[-2:], errors.count("\n")) == (["end 8 1", "0"], 1)


def test_a_set_holds_the_same_and_sorted_gives_the_same_order(tmp_path: Path) -> None:
    whole, resumed = without_stops_and_with(tmp_path, SHRINKS, (2, 6))
    assert resumed[0] == whole[0]
    assert (whole[1], resumed[1]) == ("True", "False"), "which order it has itself is not kept"


def test_what_an_older_version_has_saved_is_set_again() -> None:
    class Old(variables.Packed):
        def __reduce__(self) -> Any:
            return variables.Packed, tuple(self[:3])

    items = [Old("plain items", [1], (list, None)), Old("plain items", [2], (list, None))]
    there: list[Any] = [[0], [0]]
    first = there[0]
    again = variables.unpack(pickle.loads(pickle.dumps(Old("items", items, (list, None)))), there)
    assert again is there and there == [[1], [2]] and there[0] is first
