"""What a person is told of a job: what was taken from it, when it may start, whether its deadline is missed."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import progress
from coordinator.model import states as s
from reshape.output import job_table, render
from tests.fakes.shims import Behaviour
from tests.fakes.world import World


@pytest.fixture
def shrunk() -> World:
    """Job one has given two of its four GPUs to job two."""
    world = World()
    world.submit("one", [2, 4], Behaviour(iterations=4_000))
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.tick(100.0)
    world.submit("two", [2], Behaviour(iterations=4_000))
    world.run(lambda w: w.states() == {"one": s.RUNNING, "two": s.RUNNING})
    return world


def events(world: World, kind: str) -> list[dict[str, Any]]:
    return [e for e in world.c.event_log.after(0, 10_000) if e["type"] == kind]


def test_what_was_taken_from_a_victim_is_found_under_the_victim(shrunk: World) -> None:
    taken = [d for d in shrunk.api.history.decisions("one", 99) if d["job_id"] == "two"]
    assert [(d["kind"], d["victim"], d["jobs"]) for d in taken] == [("start", "one", ["two", "one"])]
    assert "from one, which goes from 4 to 2" in taken[0]["sentence"]
    assert taken[0] in shrunk.api.history.decisions("two", 99)
    assert "job one keeps 2" in render.decision(taken[0])


def test_a_job_that_gave_its_place_is_found_under_those_it_gave_it_to() -> None:
    from adaptive_scheduler.decision import Explanation, Requeue

    world = World()
    world.submit("one", [2], Behaviour(iterations=4_000))
    world.submit("two", [4])
    world.run(lambda w: w.states()["one"] == s.RUNNING)
    world.order(Requeue("one", Explanation("test", "It goes."), ("two",)))
    assert "It goes." in [d["sentence"] for d in world.api.history.decisions("two", 99)]


def test_decisions_of_a_former_version_are_found_under_their_job(shrunk: World) -> None:
    for doc in shrunk.users.list("decisions"):
        del doc["jobs"]
        shrunk.users.put("decisions", doc)
    assert {d["job_id"] for d in shrunk.api.history.decisions("two", 99)} == {"two"}
    assert {d["job_id"] for d in shrunk.api.history.decisions("one", 99)} == {"one"}


def test_an_expected_start_is_worked_out_when_asked(shrunk: World) -> None:
    shrunk.submit("three", [4])
    shrunk.tick()
    first = shrunk.api.jobs.job("three")
    shrunk.clock.time += 30.0
    later = shrunk.api.jobs.job("three")
    assert first["start_in_s"] - later["start_in_s"] == pytest.approx(30.0), "and goes by with the time"
    assert (first["start_guesses"], first["eta_s"]) == ([], None)
    (listed,) = [j for j in shrunk.api.jobs.list_jobs(False) if j["job_id"] == "three"]
    assert listed["start_in_s"] == later["start_in_s"]
    shrunk.tick()
    one, two = (shrunk.api.jobs.job(name)["eta_s"] for name in ("one", "two"))
    assert shrunk.api.jobs.job("three")["start_in_s"] == pytest.approx(max(one, two), rel=0.1)


def test_an_expected_start_that_rests_on_an_unknown_length_says_so() -> None:
    world = World(gpus=1)
    world.submit("one", [1], Behaviour(iterations=4_000, says_total=False), iterations=None)
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.submit("two", [1])
    world.run(lambda w: any(d["kind"] == "hold" for d in w.api.history.decisions("two", 9)), 60)
    view = world.api.jobs.job("two")
    assert view["start_guesses"] == ["one"]
    assert "a guess: nobody knows how long one will take" in render.present(view)
    hold = next(d for d in world.api.history.decisions("two", 9) if d["kind"] == "hold")
    assert hold["unchanged_guesses"] == ["one"]
    shown = render.decision(hold)
    assert "as predicted then (a guess: the length of one was unknown)." in shown


def test_one_that_runs_has_no_expected_start_and_the_same_end_wherever_it_is_shown(shrunk: World) -> None:
    view = shrunk.api.jobs.job("one")
    (listed,) = [j for j in shrunk.api.jobs.list_jobs(False) if j["job_id"] == "one"]
    assert view["start_in_s"] is None
    assert view["eta_s"] is not None
    assert listed["eta_s"] == view["eta_s"]


def test_before_its_speed_is_measured_the_end_is_predicted() -> None:
    world = World()
    world.submit("one", [4], Behaviour(iterations=400))
    world.tick()
    world.tick()
    view = world.api.jobs.job("one")
    assert (view["state"], view["seconds_per_iteration"]) == (s.INITIALIZING, None)
    assert view["eta_s"] == pytest.approx(400 * 0.25, rel=0.1)


def test_a_missed_deadline_is_told_as_it_passes_and_with_the_whole_delay_at_the_end() -> None:
    world = World()
    world.submit("one", [1], Behaviour(iterations=100), sla="30s")
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    assert (world.api.jobs.job("one")["late_s"], events(world, "missed")) == (None, [])
    world.run(lambda w: bool(events(w, "missed")), 60)
    assert events(world, "missed")[0]["sentence"].endswith(" so far.")
    world.run(World.at_rest)
    passed, ended = events(world, "missed")
    assert ended["sentence"] == f"one missed its deadline by {progress.format_duration(ended['late_s'])}."
    assert ended["late_s"] > passed["late_s"] > 0
    view = world.api.jobs.job("one")
    assert view["late_s"] == pytest.approx(ended["late_s"])
    assert "deadline:    missed by" in render.job(view)
    assert "deadline missed by" in job_table.table([view], 0.0)
    assert "Now: deadline: missed by" in render.present(view)
    world.clock.time += 1000
    assert world.api.jobs.job("one")["late_s"] == view["late_s"], "what has ended gets no later"


def test_another_coordinator_does_not_tell_it_again() -> None:
    world = World()
    world.submit("one", [1], Behaviour(iterations=400), sla="10s")
    world.run(lambda w: bool(events(w, "missed")))
    world.c.stop()
    world.boot()
    world.tick()
    world.tick()
    assert len(events(world, "missed")) == 1


@pytest.mark.parametrize(
    ("doc", "late"),
    [
        ({"sla": 60, "submit_ts": 100.0, "state": "running"}, 40.0),
        ({"sla": "2m", "submit_ts": 100.0, "state": "running"}, None),
        ({"sla": 60, "submit_ts": 100.0, "state": "completed", "finish_ts": 150.0}, None),
        ({"sla": 60, "submit_ts": 100.0, "state": "failed", "finish_ts": 170.0}, 10.0),
        ({"sla": 60, "submit_ts": 100.0, "state": "cancelled", "finish_ts": 170.0}, None),
        ({"submit_ts": 100.0, "state": "running"}, None),
        ({"sla": {"a": 1}, "submit_ts": [], "state": "running"}, None),
    ],
)
def test_how_late_a_job_is(doc: dict[str, Any], late: float | None) -> None:
    assert progress.tardiness_s(doc, 200.0) == late


@pytest.mark.parametrize(("seconds", "said"), [(5.2, "5 s"), (89, "89 s"), (725, "12 m"), (12_010, "3 h 20 m")])
def test_a_delay_is_said_in_short(seconds: float, said: str) -> None:
    assert progress.format_duration(seconds) == said
