"""When jobs start and end, as intervals of the live system: made beside decisions, compared with what then came."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from coordinator.forecasts import forecaster
from coordinator.forecasts.forecaster import PREDICTIONS
from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.patience import eventually


def asked(world: World, name: str) -> dict[str, Any]:
    world.c.forecaster.update()
    return world.api.jobs.job(name)


def queued() -> World:
    """Job one trains on all GPUs, job two waits for them."""
    world = World.training([4], Behaviour(iterations=400))
    world.submit("two", [4], Behaviour(iterations=100))
    world.tick()
    return world


def test_a_waiting_job_has_an_interval_for_its_start_and_its_end_and_both_then_hold() -> None:
    world = queued()
    two = asked(world, "two")
    one = world.api.jobs.job("one")
    assert one["starts_between"] is None
    world.run(World.at_rest)
    for name, view in (("one", one), ("two", two)):
        assert view["ends_between"][0] <= world.job(name).finish_ts <= view["ends_between"][1]
    assert two["starts_between"][0] <= world.job("two").doc["start_ts"] <= two["starts_between"][1]


def test_no_interval_lies_in_the_past_and_a_job_that_has_ended_has_none() -> None:
    world = queued()
    earliest, latest = asked(world, "one")["ends_between"]
    world.clock.time += (earliest + latest) / 2 - world.clock.wall()
    assert world.api.jobs.job("one")["ends_between"] == [world.clock.wall(), latest]
    world.clock.time += latest - world.clock.wall()
    assert world.api.jobs.job("one")["ends_between"] is None, "it has not come, and a new forecast is not made yet"
    world = queued()
    world.run(lambda w: w.states()["one"] == s.COMPLETED)
    assert asked(world, "one")["ends_between"] is None


def test_what_was_predicted_is_stored_with_what_came_and_counted_and_makes_later_intervals_narrower() -> None:
    world = queued()
    first = asked(world, "one")["ends_between"]
    for _ in range(4):
        world.pass_time(20.0)
        world.c.forecaster.update()
    world.run(World.at_rest)
    world.c.forecaster.update()
    (row,) = [row for row in world.users.list(PREDICTIONS) if row["job_id"] == "one"]
    assert all(one["at"] + one["real_s"] == pytest.approx(row["at"]) for one in row["outcomes"])
    assert len({one["at"] for one in row["outcomes"]}) == len(row["outcomes"]) > 1
    text = world.api.status.metrics().decode()
    assert 'reshape_predicted_times_total{kind="end",outcome="held"}' in text
    for number in range(40):
        world.users.insert(PREDICTIONS, {**row, "_id": f"past-{number}"})
    world.boot()
    world.submit("three", [4], Behaviour(iterations=400))
    world.run(lambda w: w.states()["three"] == s.RUNNING)
    third = asked(world, "three")["ends_between"]
    assert third[1] - third[0] < (first[1] - first[0]) / 2


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0, 31 * 86_400.0])
def test_a_clock_that_is_set_moves_what_is_shown_at_once_and_teaches_nothing(ahead_s: float) -> None:
    world = queued()
    before = asked(world, "one")["ends_between"]
    world.clock.ahead_s = ahead_s
    shown = world.api.jobs.job("one")["ends_between"]
    assert shown == pytest.approx([at + ahead_s for at in before], abs=1.0)
    coming = world.c.forecaster.coming()
    assert coming and all(begin >= world.clock.wall() - 1.0 for _, _, begin, _ in coming)
    world.run(World.at_rest)
    world.c.forecaster.update()
    rows = {row["job_id"]: row["outcomes"] for row in world.users.list(PREDICTIONS)}
    assert not rows.get("one"), "an hour more would make the intervals of all later jobs wide"
    world.submit("three", [4], Behaviour(iterations=400))
    world.run(lambda w: w.states()["three"] == s.RUNNING)
    third = asked(world, "three")["ends_between"]
    assert third[1] - third[0] <= (before[1] - before[0]) * 1.1


def test_what_rests_on_an_unknown_length_has_no_interval() -> None:
    world = World.training([4], Behaviour(iterations=400, says_total=False), iterations=None)
    world.submit("two", [4], Behaviour(iterations=100))
    world.tick()
    assert asked(world, "one")["ends_between"] is None
    two = world.api.jobs.job("two")
    assert two["start_guesses"] == ["one"] and (two["starts_between"], two["ends_between"]) == (None, None)


def test_jobs_that_are_cancelled_or_suspended_teach_nothing() -> None:
    world = queued()
    world.submit("three", [4])
    world.tick()
    world.c.forecaster.update()
    world.api.operator.cancel("two")
    world.api.operator.suspend("three")
    world.run(lambda w: w.states()["one"] == s.COMPLETED)
    world.tick()
    world.c.forecaster.update()
    assert {row["job_id"] for row in world.users.list(PREDICTIONS)} == {"one"}


@pytest.mark.parametrize(("bound", "value"), [("BUDGET_S", -1.0), ("MOST", 1)])
def test_what_a_simulation_does_not_reach_has_an_interval_of_the_plain_estimate(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    world = queued()
    simulated = asked(world, "one")["ends_between"]
    monkeypatch.setattr(forecaster, bound, value)
    one = asked(world, "one")
    two = world.api.jobs.job("two")
    assert one["ends_between"] != simulated and (two["starts_between"], two["ends_between"]) != (None, None)
    world.run(World.at_rest)
    assert one["ends_between"][0] <= world.job("one").finish_ts <= one["ends_between"][1]
    assert two["starts_between"][0] <= world.job("two").doc["start_ts"] <= two["starts_between"][1]


def test_the_thread_forecasts_after_an_event_and_ends_when_told() -> None:
    world, stopping = queued(), threading.Event()
    thread = threading.Thread(target=world.c.forecaster.run, args=(stopping, lambda: True))
    thread.start()
    world.c.event_log.append({"type": "gpu"})
    eventually(lambda: world.api.jobs.job("one")["ends_between"])
    stopping.set()
    world.c.forecaster.wake()
    thread.join(30)
    assert not thread.is_alive()
