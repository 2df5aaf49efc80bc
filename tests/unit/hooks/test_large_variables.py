"""Arrays that a loop changes in place, functions of one name, other functions: all go on after a stop."""

from __future__ import annotations

from pathlib import Path

from tests.unit.hooks.test_elastic import run as run_quietly
from tests.unit.hooks.test_script_modules import run, without_stops_and_with
from tests.unit.hooks.test_values_not_kept import last_announced

IN_PLACE = """
import numpy
class Average:
    def __init__(self):
        self.of = {"weights": numpy.zeros(300_000)}
    def update(self, step):
        self.of["weights"] *= 0.5
        self.of["weights"] += step
average, replay, constant = Average(), numpy.zeros((100_000, 4)), numpy.arange(300_000.0)
held = replay
for step in state.steps(6):
    work(step)
    average.update(step)
    replay[step] = step
print("end", average.of["weights"][7], replay.sum(), replay[:7].tolist(), held is replay, constant.sum())
"""
TOO_LARGE = """
import numpy
table = numpy.zeros(40_000_000)
for step in state.steps(6):
    work(step)
    table[0] += 1
print("end")
"""
GIVEN_TABLE = 'held = {"table": numpy.zeros(40_000_000)}\nstate = reshape_hooks.Elastic(drawn={}, held=held)'
OF_ONE_NAME = """
class Inner:
    def fit(self, fold):
        scores = []
        drawn = {"numbers": [fold]}
        state = reshape_hooks.Elastic(drawn=drawn)
        for step in state.steps(4):
            scores.append(step)
            work(10 * fold + step)
        return sum(scores) + fold
class Outer:
    def fit(self):
        scores = []
        for fold in range(3):
            scores.append(Inner().fit(fold))
        return scores
print("end", Outer().fit())
"""
SPAWNS = """
import numpy
rng, seeds = numpy.random.default_rng(3), numpy.random.SeedSequence(5)
found = []
for step in state.steps(6):
    work(step)
    found.append((rng.spawn(1)[0].integers(100), int(seeds.spawn(1)[0].generate_state(1)[0])))
print("end", found, rng.integers(100))
"""

SWITCHES = """
import math, operator
def mean(step):
    return step / 2
def largest(step):
    return step * 7
class Slow:
    def __call__(self, step):
        return -step
def main():
    loss, rule, kind, found = mean, math.floor, int, []
    for step in state.steps(6):
        if step == 2:
            loss, rule, kind = largest, operator.neg, Slow
        found.append((loss(step), rule(step), kind()(step) if kind is Slow else kind(step)))
        work(step)
    print("end", found)
main()
"""
LAMBDA = """
def main():
    loss = abs
    for step in state.steps(6):
        if step == 2:
            loss = lambda step: -step
        loss(step)
        work(step)
    print("end")
main()
"""


def test_a_function_or_class_that_the_loop_puts_in_place_of_another_one_goes_on(tmp_path: Path) -> None:
    whole, resumed = without_stops_and_with(tmp_path, {}, SWITCHES)
    assert resumed == whole


def not_stopped(folder: Path, script: str) -> str:
    """Return what a training is told that goes on after SIGTERM, and is announced no more."""
    lines, errors = run(folder, {}, script, 1, 3)
    assert lines[-2:] == ["end", "0"]
    assert last_announced(folder).startswith("withdrawn")
    return errors


def test_one_that_has_no_name_is_named_and_does_not_end_by_a_stop(tmp_path: Path) -> None:
    assert (
        "this training could not be saved and goes on: loss of main changes during training, and a restart would reset "
        "it, because a new start does not find a lambda or a nested function: define it by `def` outside of functions\n"
    ) in not_stopped(tmp_path, LAMBDA)


def test_arrays_that_the_loop_changes_in_place_go_on(tmp_path: Path) -> None:
    whole, resumed = without_stops_and_with(tmp_path, {}, IN_PLACE)
    assert resumed == whole
    assert "True" in whole[0]


def test_what_is_too_large_is_named_where_it_changes_and_does_not_end_by_a_stop(tmp_path: Path) -> None:
    assert (
        "this training could not be saved and goes on: table of <module> changes during training, and a restart would "
        "reset it, because it holds more than is kept of a variable: give it to Elastic in a dictionary, and use it "
        "from there only\n"
    ) in not_stopped(tmp_path, TOO_LARGE)


def test_what_is_too_large_and_in_a_given_dictionary_goes_on(tmp_path: Path) -> None:
    script = TOO_LARGE.replace("table = numpy.zeros(40_000_000)", GIVEN_TABLE).replace("table[0]", "held['table'][0]")
    lines, errors = run(tmp_path, {}, script, 1, 3)
    assert (lines[-1], errors) == ("143", "")
    assert run(tmp_path, {}, script.replace('"end"', "held['table'][0]"), 2)[0][-2:] == ["6.0", "0"]


def test_functions_of_one_name_have_their_own_variables(tmp_path: Path) -> None:
    whole = run_quietly(tmp_path / "whole", OF_ONE_NAME, 1)
    for generation, stop in enumerate((2, 11), start=1):
        assert run_quietly(tmp_path / "parts", OF_ONE_NAME, generation, stop)[-1] == "143"
    assert run_quietly(tmp_path / "parts", OF_ONE_NAME, 3)[-2:] == whole[-2:]


def test_generators_that_others_are_spawned_from_go_on(tmp_path: Path) -> None:
    whole, resumed = without_stops_and_with(tmp_path, {}, SPAWNS)
    assert resumed == whole


DEFINES = """
def fold(number):
    def loss(step):
        return step + number
    rule = lambda step: -step
    found = []
    state = reshape_hooks.Elastic(drawn={"of": [number]})
    for step in state.steps(2):
        found.append(loss(step) + rule(step))
        work(10 * number + step)
    return found
print("end", [fold(number) for number in range(3)])
"""


def test_functions_that_each_call_defines_anew_are_no_others(tmp_path: Path) -> None:
    lines, errors = run(tmp_path, {}, DEFINES, 1)
    assert lines[-2:] == ["end [[0, 0], [1, 1], [2, 2]]", "0"]
    assert not errors
