"""Jobs that wait for others: in the queue only once these are completed, failed with them, and told why."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.scheduling import dependencies, intake
from tests.fakes.shims import Behaviour
from tests.fakes.world import World


def job(*on: object, **more: Any) -> JobRecord:
    return JobRecord({"_id": "c", "job_id": "c", "depends_on": list(on), **more})


def test_it_waits_for_those_that_are_not_completed_and_names_them() -> None:
    states: dict[str, str | None] = {"a": s.COMPLETED, "b": s.RUNNING}
    assert dependencies.evaluate(job("a", "b"), states).waits == "c waits until b is completed."
    assert dependencies.evaluate(job("a"), states) == ("", "")
    many = dependencies.evaluate(job(*"pqrst"), dict.fromkeys("pqrst", s.SUBMITTED)).waits
    assert many == "c waits until p, q, r and 2 more are completed."


def test_one_that_nobody_knows_may_still_come_unless_it_was_there() -> None:
    assert dependencies.evaluate(job("x"), {}).waits == "c waits until x is completed; there is no x yet."
    assert dependencies.evaluate(job("x", slaml={"uid": "u"}), {}).fails.endswith("before it, was deleted")


@pytest.mark.parametrize("given", ["a", [1.5], [None], [["a"]], {}])
def test_what_is_no_list_of_ids_is_refused(given: object) -> None:
    assert [p for p in intake.problems({"depends_on": given}) if p.startswith("depends_on must be a list")]


def test_nobody_waits_for_himself() -> None:
    assert list(dependencies.problems({"job_id": "a", "depends_on": ["a"]})) == [
        "depends_on names the job itself: take that out"
    ]


def test_a_job_starts_when_those_before_it_are_completed_though_gpus_are_idle_all_the_time() -> None:
    world = World()
    world.submit("one", [1], Behaviour(iterations=10))
    world.submit("two", [1], Behaviour(iterations=10), depends_on=["one"])
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    assert (world.states()["two"], world.job("two").doc["message"]) == (
        s.SUBMITTED, "two waits until one is completed.",
    )  # fmt: skip
    why = world.users.get("decisions", "two-waits")
    assert why is not None
    assert why["sentence"] == "two waits until one is completed."
    world.run(lambda w: w.states()["two"] == s.RUNNING, 60)
    assert world.states()["one"] == s.COMPLETED
    world.run(lambda w: w.states()["two"] == s.COMPLETED, 60)


def test_a_job_fails_with_the_one_before_it_also_after_the_coordinator_was_gone() -> None:
    world = World()
    world.submit("one", [1], Behaviour(iterations=1000))
    world.submit("two", [1], Behaviour(iterations=10), depends_on=["one"])
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    world.api.cancel("one")
    world.run(lambda w: bool(w.job("one").doc.get("closed")), 60)
    world.boot()
    world.run(lambda w: bool(w.job("two").doc.get("closed")), 60)
    assert world.states()["two"] == s.FAILED
    assert world.job("two").doc["message"] == "job one, which had to be completed before it, was cancelled"


def test_a_waiting_job_can_be_cancelled() -> None:
    world = World()
    world.submit("two", [1], Behaviour(iterations=10), depends_on=["one"])
    world.tick()
    world.api.cancel("two")
    world.run(lambda w: w.states()["two"] == s.CANCELLED, 60)
