"""Jobs that wait for others: in the queue only once these are completed, failed with them, and told why."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.scheduling import dependencies, dependency_circles, intake
from tests.fakes.shims import Behaviour
from tests.fakes.world import JOB_TYPE, World

GIVEN = {"command": ["python", "train.py"], "optional_num_gpus": [1], "job_type": JOB_TYPE, "iterations": 10}


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
    world.api.operator.cancel("one")
    world.run(lambda w: bool(w.job("one").doc.get("closed")), 60)
    world.boot()
    world.run(lambda w: bool(w.job("two").doc.get("closed")), 60)
    assert world.states()["two"] == s.FAILED
    assert world.job("two").doc["message"] == "job one, which had to be completed before it, was cancelled"


def test_a_waiting_job_can_be_cancelled() -> None:
    world = World()
    world.submit("two", [1], Behaviour(iterations=10), depends_on=["one"])
    world.tick()
    world.api.operator.cancel("two")
    world.run(lambda w: w.states()["two"] == s.CANCELLED, 60)


def test_a_circle_is_refused_at_submission_with_the_way_that_it_takes() -> None:
    world = World()
    for job_id, after in (("a", ["c"]), ("b", ["a"])):
        world.api.submissions.submit({**GIVEN, "job_id": job_id, "depends_on": after})
    world.tick()
    with pytest.raises(
        Rejected, match=r"no job can ever start: c waits for b, b for a, a for c; leave one of these out\.$"
    ):
        world.api.submissions.submit({**GIVEN, "job_id": "c", "depends_on": ["x", "b"]})
    assert world.job("a").doc["message"] == "a waits until c is completed; there is no c yet."
    world.api.submissions.submit({**GIVEN, "job_id": "c", "depends_on": []})
    world.run(lambda w: set(w.states().values()) == {s.COMPLETED})


def test_a_circle_of_jobs_that_were_not_read_yet_is_refused_too() -> None:
    world = World()
    world.api.submissions.submit({**GIVEN, "job_id": 7, "depends_on": ["b"]})
    with pytest.raises(Rejected, match="b waits for 7, 7 for b"):
        world.api.submissions.submit({**GIVEN, "job_id": "b", "depends_on": ["7"]}, dry_run=True)


def test_a_circle_of_inserted_documents_is_said_on_all_its_jobs_and_on_those_behind_it() -> None:
    world = World()
    circle = "a waits for b, b for a. Cancel these jobs, and submit them again without the circle."
    for job_id, after in (("a", ["b"]), ("b", ["a"]), ("behind", ["a"]), ("free", []), ("after", ["free"])):
        world.submit(job_id, [1], Behaviour(iterations=10), depends_on=after)
    world.run(lambda w: w.states()["after"] == s.COMPLETED)
    for job_id in ("a", "b"):
        assert world.job(job_id).doc["message"] == f"{job_id} is in a circle, in which no job can ever start: {circle}"
    assert world.job("behind").doc["message"] == f"behind waits until a is completed, which never happens: {circle}"
    assert world.api.jobs.job("b")["message"].startswith("b is in a circle")
    world.api.operator.cancel("a")
    world.run(lambda w: w.at_rest())
    assert world.states() == {
        "a": s.CANCELLED, "b": s.FAILED, "behind": s.FAILED, "free": s.COMPLETED, "after": s.COMPLETED,
    }  # fmt: skip


def test_one_that_waits_for_a_refused_document_says_so_until_that_is_corrected() -> None:
    world = World()
    world.submit("a", [1], Behaviour(iterations=10), depends_on=["b"])
    world.submit("b", [1], Behaviour(iterations=10), epochs="many")
    world.tick()
    world.tick()
    assert world.job("a").doc["message"] == "a waits until b is completed; b was refused: correct that first."
    world.users.update("jobs", "b", {}, {"epochs": 3})
    world.run(lambda w: w.states()["a"] == s.COMPLETED)


def test_each_job_that_never_starts_is_found_and_no_other() -> None:
    waiting = {
        "free": [], "after": ["free", "gone"], "a": ["after", "b"], "b": ["c"], "c": ["a"],
        "self": ["self"], "behind": ["free", "d"], "d": ["self", "after"],
    }  # fmt: skip
    found = dependency_circles.standing_still(waiting)
    assert found.keys() == {"a", "b", "c", "self", "behind", "d"}
    assert {frozenset(found[job_id]) for job_id in "abc"} == {frozenset("abc")}
    assert {found[job_id] for job_id in ("self", "behind", "d")} == {("self",)}


def test_a_circle_of_thousands_is_found_at_once_and_told_in_short() -> None:
    ring = {str(n): [str((n + 1) % 20_000)] for n in range(20_000)}
    found = dependency_circles.standing_still({**ring, "behind": ["5"]})
    assert len(found) == 20_001
    assert dependency_circles.describe(dependency_circles.closed_by("0", ring.__getitem__)) == (
        "0 waits for 1, 1 for 2, 2 for 3, 3 for 4, and so on through 19995 more, 19999 for 0"
    )
