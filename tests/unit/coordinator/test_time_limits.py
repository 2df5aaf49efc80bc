"""A job with a `time_limit` trains that long and no longer, has saved by then, and says so at its end."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.model import time_limit
from coordinator.model.records import JobRecord
from coordinator.scheduling import intake
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World
from tests.unit.coordinator.situations import job, mine, seen, world, written

LONG = 10**6


def limited(limit: object, **behaviour: Any) -> World:
    made = World()
    made.submit("one", [1], Behaviour(**{"iterations": LONG, **behaviour}), time_limit=limit)
    made.run(lambda w: w.states()["one"] == s.RUNNING)
    return made


def until_its_end(world: World) -> JobRecord:
    world.run(lambda w: w.at_rest(), 600)
    return world.job("one")


def test_it_has_saved_and_ended_when_its_limit_is_reached() -> None:
    job = until_its_end(world := limited("2m"))
    assert job.state == s.CANCELLED
    assert 120 - SHORT.grace_s - 1 <= job.doc["ran_s"] <= 120
    step = job.doc["checkpoint"]["step"]
    assert step >= 110, "all that it has done is saved"
    again = "`reshape rerun one` trains it again from the beginning"
    assert world.api.jobs.job("one")["message"] == (
        f"stopped at its time limit of 2 min; its newest checkpoint is of step {step}; {again}"
    )
    decided = [decision["sentence"] for decision in world.api.history.decisions("one", 50)]
    assert any("one comes to its time limit of 2 min: it saves and ends." in said for said in decided)
    assert {world.gpu(f"gpu-{i}").state for i in range(4)} == {s.IDLE}


def test_time_in_which_it_is_suspended_does_not_count() -> None:
    world = limited("2m")
    world.pass_time(40)
    world.api.operator.suspend("one")
    world.run(lambda w: w.states()["one"] == s.SUBMITTED, 60)
    world.pass_time(400)
    assert world.states()["one"] == s.SUBMITTED
    world.api.operator.resume("one")
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    job = until_its_end(world)
    assert (job.state, job.doc["timed_out"]) == (s.CANCELLED, True)
    assert 110 <= job.doc["ran_s"] <= 121


@pytest.mark.parametrize("ahead_s", [0.0, 40 * 86_400.0, -40 * 86_400.0])
def test_it_holds_across_restarts_of_the_coordinator_and_jumps_of_the_clock(ahead_s: float) -> None:
    world = limited("2m")
    for _ in range(4):
        world.pass_time(20)
        world.clock.ahead_s = ahead_s
        world.boot()
    assert world.states()["one"] == s.RUNNING
    job = until_its_end(world)
    assert (job.state, job.doc["timed_out"]) == (s.CANCELLED, True)
    assert 110 <= job.doc["ran_s"] <= 122


def test_a_coordinator_that_ends_in_the_middle_of_that_leaves_the_rest_to_its_successor() -> None:
    world = limited("2m", save_s=4.0)
    world.run(lambda w: w.job("one").cancel, 200)
    world.boot()
    job = until_its_end(world)
    assert "time limit of 2 min" in job.doc["message"]


def test_a_training_that_hangs_ends_at_its_limit_too() -> None:
    job = until_its_end(limited("2m", ignores_stop=True))
    assert job.state == s.CANCELLED
    assert job.doc["ran_s"] <= 120 + SHORT.kill_s + 2
    assert "stopped at its time limit of 2 min; it has no checkpoint;" in job.doc["message"]


def test_one_that_is_done_in_time_is_completed() -> None:
    job = until_its_end(limited("2m", iterations=50))
    assert (job.state, job.doc["message"]) == (s.COMPLETED, "completed")


def test_one_that_has_done_all_of_it_when_it_has_ended_is_completed() -> None:
    over = {"stop_asked": True, "exit_code": 0, "exit_at": 60.0}
    asked: dict[str, Any] = {"cancel": True, "timed_out": True, "time_limit": 60}
    beat = seen("exited", steps=100, **over)
    done = written(world(job(s.RUNNING, "a", iterations=100, **asked), beat, mine("a")), "completed")
    assert done["message"] == "completed"
    short = written(world(job(s.RUNNING, "a", iterations=101, **asked), beat, mine("a")), "cancelled")
    assert short["message"].startswith("stopped at its time limit of 1 min; its newest checkpoint is of step 10;")


def test_its_view_says_what_is_left_and_ends_no_later() -> None:
    world = limited("2m")
    world.pass_time(30)
    view = world.api.jobs.job("one")
    assert view["time_limit"] == "2m"
    assert 80 <= view["time_left_s"] <= 95
    assert view["eta_s"] <= view["time_left_s"] + 20
    until_its_end(world)
    assert world.api.jobs.job("one")["time_left_s"] is None


def test_the_limit_can_be_raised_while_it_trains() -> None:
    world = limited("1m")
    world.pass_time(30)
    world.users.update("jobs", "one", {}, {"time_limit": "2m"})
    world.pass_time(40)
    assert world.states()["one"] == s.RUNNING
    assert "2 min" in until_its_end(world).doc["message"]


@pytest.mark.parametrize(("limit", "grace", "asked_s"), [("2h", None, 7180.0), (60, None, 54.0), ("10m", 90, 540.0)])
def test_it_is_asked_its_grace_before_the_limit_of_a_short_one_at_nine_tenths(
    limit: object, grace: int | None, asked_s: float
) -> None:
    job = JobRecord({"_id": "a", "time_limit": limit, "grace_s": grace})
    assert time_limit.asked_after_s(job, 20.0) == asked_s


@pytest.mark.parametrize("limit", [0, -5, "2 hours", "", [], "0m", True])
def test_what_is_no_duration_is_refused_with_what_to_write(limit: object) -> None:
    (said,) = intake.problems({"job_id": "a", "state": s.SUBMITTED, "command": "x", "num_gpus": 1, "time_limit": limit})
    assert said.startswith('time_limit must be seconds above 0, or a text such as "90s", "15m" or "2h", not ')
