"""What others use of a node: how it is averaged and told in steps, what of it counts, and what decisions see of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundNode
from coordinator.telemetry.measured.other_load import FRESH_S, MEAN_S, HeldByOthers, OtherLoad, held_by_others
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, FakeClock, World

GIB = 2.0**30
NODE = {"_id": "n", "cores": 4.0, "memory": 16 * GIB}
BEAT_S = 5.0
ONE_MACHINE = replace(SHORT, many_pods=False)  # no pods, in which our sidecar requests something, too


class Ground:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.load = OtherLoad(self.clock)

    def take(self, *cores: float, memory: float = 0.0) -> list[float]:
        """The cores that are told after each of these measurements."""
        told = []
        for used in cores:
            self.clock.time += BEAT_S
            self.load.add_measurement("n", used, memory, "processes")
            told.append(self.held().cores)
        return told

    def held(self, **more: Any) -> HeldByOthers:
        return held_by_others(self.load.added({"n": {**NODE, **more}})["n"])


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_a_lasting_load_counts_at_once_if_it_was_there_first_and_after_a_while_if_it_came(ground: Ground) -> None:
    assert ground.take(1.0) == [1.0]
    came = Ground().take(0.0, *[1.0] * 100)
    assert came[:3] == [0.0] * 3, "a few seconds of work are no load"
    assert came[-1] == 1.0 and came == sorted(came)


@pytest.mark.parametrize(
    "swings",
    [
        [0.95, 0.55] * 300,  # about the middle between two steps
        ([0.0] * 4 + [2.0] * 4) * 80,  # somebody compiles every 40 seconds
        [1.0, 1.4, 0.6, 1.3, 0.7, 1.0] * 100,
    ],
)
def test_a_load_that_swings_is_told_once(ground: Ground, swings: list[float]) -> None:
    told = ground.take(*swings * 5)
    settled = told[int(5 * MEAN_S / BEAT_S) :]
    assert len(set(settled)) == 1, settled


def test_a_load_that_ends_stops_counting(ground: Ground) -> None:
    ground.take(*[2.0] * 20)
    falls = ground.take(*[0.0] * 60)
    assert falls[-1] == 0.0 and falls == sorted(falls, reverse=True)


def test_a_measurement_that_is_not_renewed_is_forgotten(ground: Ground) -> None:
    ground.take(2.0)
    ground.clock.time += FRESH_S + 1
    assert ground.held() == HeldByOthers()
    ground.take(1.0)
    ground.load.forget_node("n")
    assert ground.held() == HeldByOthers()


def test_cores_count_to_half_of_the_node_and_memory_to_all_of_it(ground: Ground) -> None:
    ground.take(4.0, memory=15 * GIB)
    found = ground.held()
    assert found.cores == 2.0, "the kernel gives our trainings their share of what all want"
    assert found.memory == pytest.approx(15 * GIB, rel=0.05)


def test_what_is_requested_and_used_counts_once(ground: Ground) -> None:
    ground.take(1.5, memory=2 * GIB)
    asks_more = ground.held(others={"cores": 3.0, "memory": 4 * GIB})
    assert asks_more == HeldByOthers(3.0, 4 * GIB, "requests", 0.0, 0.0, lent_cores=1.5)
    assert asks_more.sentence == ""
    asks_less = ground.held(others={"cores": 1.0, "memory": 4 * GIB})
    assert asks_less == HeldByOthers(1.5, 4 * GIB, "processes", 0.5, 0.0)


def test_a_job_waits_for_cores_that_others_use_is_told_so_and_starts_when_they_rest() -> None:
    world = World(gpus=0, nodes=[FoundNode("c", cores=4.0, memory=16 * GIB)], config=ONE_MACHINE)
    world.c.telemetry.nodes.others.add_measurement("c", 1.0, 0.0, "processes", {"cpu_use": 0.25, "memory_use": 0.125})
    world.submit("wide", [0], resources={"cores": 4})
    world.tick()
    view = world.api.jobs.job("wide")
    assert view["state"] == "submitted"
    assert "it has not enough cores or memory left (other processes use 1 of its cores and 0.0 GiB)" in view["message"]
    (node,) = [each for each in world.api.fleet.nodes() if each["node"] == "c"]
    assert (node["cores"], node["others_cores"], node["others_from"]) == (4.0, 1.0, "processes")
    assert (node["cpu_use"], node["memory_use"]) == (0.25, 0.125), "R(w, t)"
    assert world.c.loop.present()[0].capacity["cores"] == 3.0, "and the Diagnoser sees it"
    for _ in range(60):
        world.clock.time += BEAT_S
        world.c.telemetry.nodes.others.add_measurement("c", 0.0, 0.0, "processes")
    world.run(lambda world: world.api.jobs.job("wide")["state"] != "submitted")


def test_a_job_that_trains_is_left_alone_whatever_others_begin_to_use_and_newcomers_wait() -> None:
    world = World(gpus=0, nodes=[FoundNode("c", cores=4.0, memory=16 * GIB)], config=ONE_MACHINE)
    others = world.c.telemetry.nodes.others
    world.submit("there", [0], Behaviour(iterations=1_000), resources={"cores": 4, "memory": 8 * GIB})
    world.run(lambda world: world.job("there").state == s.RUNNING)
    before = world.job("there").generation, world.job("there").launch
    for at in range(60):
        world.tick(BEAT_S)
        others.add_measurement("c", 4.0 * (at % 3 > 0), 12 * GIB, "processes")
    assert world.job("there").state == s.RUNNING
    assert (world.job("there").generation, world.job("there").launch) == before
    assert world.job("there").operation is None
    world.submit("late", [0], resources={"cores": 1})
    for _ in range(5):
        world.tick(BEAT_S)
    assert "it has not enough cores or memory left" in world.api.jobs.job("late")["message"]
