"""Arrays that a loop changes in place, functions of one name, generators that spawn: all go on after a stop."""

from __future__ import annotations

from pathlib import Path

from tests.unit.hooks.test_elastic import run as run_quietly
from tests.unit.hooks.test_script_modules import run, without_stops_and_with

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


def test_arrays_that_the_loop_changes_in_place_go_on(tmp_path: Path) -> None:
    whole, resumed = without_stops_and_with(tmp_path, {}, IN_PLACE)
    assert resumed == whole
    assert "True" in whole[0]


def test_what_is_too_large_is_said_where_it_changes(tmp_path: Path) -> None:
    lines, errors = run(tmp_path, {}, TOO_LARGE, 1, 3)
    assert lines[-1] == "143"
    assert "after a stop table of <module> begins anew, because it holds too much" in errors


def test_functions_of_one_name_have_their_own_variables(tmp_path: Path) -> None:
    whole = run_quietly(tmp_path / "whole", OF_ONE_NAME, 1)
    for generation, stop in enumerate((2, 11), start=1):
        assert run_quietly(tmp_path / "parts", OF_ONE_NAME, generation, stop)[-1] == "143"
    assert run_quietly(tmp_path / "parts", OF_ONE_NAME, 3)[-2:] == whole[-2:]


def test_generators_that_others_are_spawned_from_go_on(tmp_path: Path) -> None:
    whole, resumed = without_stops_and_with(tmp_path, {}, SPAWNS)
    assert resumed == whole
