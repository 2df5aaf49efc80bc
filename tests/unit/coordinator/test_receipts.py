"""Why a running job has its GPUs, and what a decision predicted beside what then happened."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.scheduling.receipts import named, receipt, with_standstill
from reshape.output import render
from tests.fakes.shims import Behaviour
from tests.fakes.world import World


@pytest.fixture
def shrunk() -> World:
    """Job one has given two of its four GPUs to job two."""
    world = World()
    world.submit("one", [2, 4], Behaviour(iterations=400))
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.tick(20.0)
    world.submit("two", [2], Behaviour(iterations=100))
    world.run(lambda w: w.states() == {"one": s.RUNNING, "two": s.RUNNING})
    return world


def by_kind(world: World, job: str, kind: str) -> dict[str, Any]:
    """The newest decision of a kind about a job."""
    found: dict[str, Any] = next(d for d in world.api.history.decisions(job, 99) if d["kind"] == kind)
    return found


def test_a_running_job_says_by_which_decision_it_has_its_gpus(shrunk: World) -> None:
    taken = by_kind(shrunk, "two", "start")["sentence"]
    for job in ("one", "two"):
        view = shrunk.api.jobs.job(job)
        assert (view["because"], view["receipt"]) == (taken, None)
        assert f"because:     {taken}" in render.job(view)
    shrunk.run(lambda w: w.states()["two"] == s.COMPLETED and w.states()["one"] == s.RUNNING)
    shrunk.run(lambda w: w.job("one").doc["reshapes"] == 2)
    assert shrunk.api.jobs.job("one")["because"] == by_kind(shrunk, "one", "reshape")["sentence"]
    assert "grows from 2 to 4" in shrunk.api.jobs.job("one")["because"]


def test_one_that_is_being_changed_says_by_which_decision() -> None:
    world = World.training([2, 4])
    world.submit("two", [2])
    world.tick()
    assert world.states()["one"] == s.ADJUSTING
    assert "from one, which goes from 4 to 2" in world.api.jobs.job("one")["because"]


def test_the_standstill_of_a_victim_stands_beside_the_predicted_one(shrunk: World) -> None:
    made = by_kind(shrunk, "two", "start")["receipt"]
    gaps = [e["gap_s"] for e in shrunk.c.event_log.after(0, 10_000) if e["type"] == "reshaped"]
    assert made["gap_s"]["real"] == gaps[0] > 0
    assert made["gap_s"]["predicted"] == pytest.approx(2.5)  # checkpoint, exit and start of the profile
    assert "one stood still for" in made["sentence"]
    assert "job_s" not in made, "neither job has ended"


def test_a_standstill_is_told_after_later_ones_of_the_same_job_by_whoever_reads_the_store(shrunk: World) -> None:
    """The job's document has only the last one; each decision that stops the job takes down the one before."""
    shrunk.run(lambda w: w.states()["two"] == s.COMPLETED and w.job("one").doc["reshapes"] == 2)
    shrunk.submit("three", [2], Behaviour(iterations=10**6))
    shrunk.run(lambda w: w.job("one").doc["reshapes"] == 3 and w.states()["one"] == s.RUNNING)
    gaps = [e["gap_s"] for e in shrunk.c.event_log.after(0, 10_000) if e["type"] == "reshaped"]
    shrunk.boot()  # a kill loses what was in memory only
    shrunk.tick()
    shown = [
        by_kind(shrunk, job, kind)["receipt"]
        for job, kind in (("two", "start"), ("one", "reshape"), ("three", "start"))
    ]
    assert [made["gap_s"]["real"] for made in shown] == gaps
    assert all(row.get("gap_s") is None for row in shrunk.users.list("decisions")), "no write of its own"


def test_what_a_decision_of_an_older_version_says_itself_counts() -> None:
    decision: dict[str, Any] = {"_id": "d", "at": 1.0, "stops": "one", "gap_s": 3.0}
    later = {"at": 2.0, "stood": {"decision": "d", "gap_s": 4.0}}
    assert with_standstill(decision, [later], None) == decision


STOOD = {"decision": "one-v5", "gap_s": 2.0}


@pytest.mark.parametrize(
    ("later", "job", "gap_s"),
    [
        ({"at": 9.0, "stood": STOOD}, {}, 2.0),
        ({"at": 7.0, "stood": STOOD}, {}, None),  # it is older: another job of this name had a decision of this id
        ({"at": 9.0, "stood": {**STOOD, "decision": "one-v4"}}, {}, None),
        ({"at": 9.0, "stood": "odd"}, {}, None),
        ({}, {"submit_ts": 7.0, "reshaped_by": "one-v5", "reshape_cost_s": 2.0}, 2.0),
        ({}, {"submit_ts": 9.0, "reshaped_by": "one-v5", "reshape_cost_s": 2.0}, None),
        ({}, {"submit_ts": 7.0, "reshaped_by": "one-v4", "reshape_cost_s": 2.0}, None),
        ({}, {"submit_ts": 7.0, "reshaped_by": "one-v5", "reshape_cost_s": None}, None),
    ],
)
def test_a_standstill_is_that_of_this_decision(later: dict[str, Any], job: dict[str, Any], gap_s: float | None) -> None:
    decision = {"_id": "one-v5", "at": 8.0, "stops": "one"}
    told = with_standstill(decision, [later], JobRecord({"_id": "one", "job_id": "one", **job}) if job else None)
    assert told.get("gap_s") == gap_s


def test_after_its_end_the_receipt_says_what_was_predicted_and_what_came(shrunk: World) -> None:
    shrunk.run(World.at_rest)
    start = by_kind(shrunk, "two", "start")
    made, two = start["receipt"], shrunk.job("two")
    assert made["job_s"] == {"predicted": start["candidates"][0]["job_s"], "real": two.finish_ts - start["at"]}
    last = max(shrunk.job(name).finish_ts for name in ("one", "two"))
    assert made["makespan_s"] == {"predicted": start["candidates"][0]["makespan_s"], "real": last - start["at"]}
    assert shrunk.api.history.decision(start["decision_id"])["receipt"] == made
    assert made["sentence"] in render.decision(start)
    view = shrunk.api.jobs.job("two")
    assert (view["because"], view["receipt"]) == (None, made)
    assert made["sentence"] in render.job(view)


JOBS = {
    "one": {"state": "completed", "submit_ts": 50.0, "finish_ts": 150.0},
    "two": {"state": "completed", "submit_ts": 60.0, "finish_ts": 130.0},
    "lost": {"state": "cancelled", "submit_ts": 60.0, "finish_ts": 140.0},
    "runs": {"state": "running", "submit_ts": 60.0},
    "later": {"state": "completed", "submit_ts": 120.0, "finish_ts": 160.0},
}
DECISION = {
    "job_id": "one", "at": 100.0, "counted": ["one", "two"], "stops": None,
    "candidates": [{"job_s": 40.0, "makespan_s": 80.0, "rejected": ""}, {"job_s": 1.0, "rejected": "longer"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "one ended after 50.0 s (predicted 40.0 s, +25 %); "
             "all that ran then had ended after 50.0 s (predicted 80.0 s, -38 %)."),
        ({"counted": None}, "one ended after 50.0 s (predicted 40.0 s, +25 %)."),
        ({"counted": ["one", "runs"]}, "one ended after 50.0 s (predicted 40.0 s, +25 %)."),
        ({"counted": ["one", "lost"]}, "one ended after 50.0 s (predicted 40.0 s, +25 %)."),
        ({"job_id": "later", "counted": ["later", "one"]}, None),
        ({"job_id": "lost"}, "all that ran then had ended after 50.0 s (predicted 80.0 s, -38 %)."),
        ({"job_id": "runs", "counted": None}, None),
        ({"candidates": [], "stops": "two", "predicted_gap_s": 0.0, "gap_s": 2.0},
         "two stood still for 2.0 s (predicted 0.0 s)."),
        ({"candidates": [{"job_s": None, "makespan_s": None, "rejected": ""}]}, None),
        ({"at": None}, None),
    ],
)  # fmt: skip
def test_only_what_was_predicted_and_has_come_is_compared(changes: dict[str, Any], said: str | None) -> None:
    decision = {**DECISION, **changes}
    jobs = {name: JobRecord({"_id": name, "job_id": name, **JOBS[name]}) for name in named(decision) if name in JOBS}
    made = receipt(decision, jobs)
    assert (made and made["sentence"]) == (said and f"Predicted and real: {said}")


def test_a_decision_on_many_jobs_does_not_store_all_their_names() -> None:
    from coordinator.scheduling.decision_records import COUNTED

    world = World(gpus=COUNTED + 2)
    for n in range(COUNTED):
        world.submit(f"j{n:02}", [1], Behaviour(iterations=10**6))
    world.run(lambda w: set(w.states().values()) == {s.RUNNING}, 60)
    world.submit("new", [1])
    world.tick()
    (doc,) = world.users.list("decisions", {"job_id": "new"})
    assert doc["counted"] is None
