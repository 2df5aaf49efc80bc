"""A training whose code has changed since it was started is stopped for what its user asks only."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.resumption import newly_known, refuse_suspension, rigid, rigidity_reason, stays_unasked
from coordinator.reconcile.actions import StopTrainer, WriteJob
from coordinator.reconcile.lifecycle import next_step
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.unit.coordinator.situations import BOOKED, job, mine, newcomer, seen, victim, world

EDITED = {"files": ["model.py"], "generation": 1}
CHANGED = msgspec.structs.replace(seen(), edited=["model.py"])


def test_a_report_of_changed_files_is_written_down_until_they_are_as_they_were() -> None:
    one = job(s.RUNNING, "a")
    found = newly_known(one, {0: CHANGED}, CHANGED)
    assert found == {"edited": EDITED}
    known = JobRecord({**one.doc, **found})
    assert newly_known(known, {0: CHANGED}, CHANGED) == {}
    assert newly_known(known, {0: seen()}, seen()) == {"edited": None}


@pytest.mark.parametrize(("trainer", "generation"), [("running", 2), ("stopping", 1), ("exited", 1)])
def test_a_report_of_another_generation_or_of_one_that_stops_says_nothing(trainer: str, generation: int) -> None:
    beat = msgspec.structs.replace(seen(trainer, generation), edited=["model.py"])
    assert newly_known(job(s.RUNNING, "a"), {0: beat}, beat) == {}


def test_it_keeps_what_it_has_but_loses_nothing_when_its_user_asks() -> None:
    edited = job(s.RUNNING, "a", "b", edited=EDITED)
    assert stays_unasked(edited) and not rigid(edited) and refuse_suspension(edited, lasting=True) == ""
    assert rigidity_reason(edited) == (
        "keeps its 2 GPUs: model.py has changed since it was started; "
        "`reshape suspend one` and `reshape resume one` start it with the new code"
    )
    agreed = JobRecord({**edited.doc, "code_agreed": 1})
    assert not stays_unasked(agreed) and rigidity_reason(agreed) == ""


def test_a_reshape_under_way_is_undone_before_its_stop() -> None:
    step = next_step(world(victim(edited=EDITED), seen(), BOOKED, newcomer(s.INITIALIZED)))
    assert not isinstance(step, StopTrainer)


def test_a_job_that_shall_yield_trains_on() -> None:
    op = {"kind": "requeue", "from": ["a"], "to": [], "generation": 2, "yields_to": ["two"]}
    yields: dict[str, Any] = {"op": op, "edited": EDITED}
    step = next_step(world(job(s.ADJUSTING, "a", **yields), seen(), mine("a")))
    assert isinstance(step, WriteJob) and (step.name, step.changes["state"]) == ("undo", s.RUNNING)
    asked = next_step(world(job(s.ADJUSTING, "a", **yields, code_agreed=1), seen(), mine("a")))
    assert isinstance(asked, StopTrainer)


def test_it_is_known_whether_anybody_asked_for_a_stop() -> None:
    def unasked(of: JobRecord) -> bool:
        return world(of, seen(), BOOKED, newcomer(s.INITIALIZED)).stop_is_unasked

    forced: dict[str, Any] = {"op": {**victim().doc["reshape"], "forced": True}}
    assert unasked(victim())
    assert not any(map(unasked, (victim(code_agreed=1), victim(cancel=True), victim(**forced), job(s.RUNNING, "a"))))


def test_its_users_request_agrees_to_the_code_as_it_is_for_one_stop() -> None:
    training = World.training([2, 4])
    training.users.update("jobs", "one", {}, {"edited": EDITED})
    training.submit("two", [2], Behaviour(iterations=10))
    training.c.cache.refresh()
    assert training.job("one").edited == ("model.py",)
    training.api.operator.request("one", None, None)
    assert training.job("one").edited == ()
    training.api.operator.suspend("one")
    training.run(lambda w: w.states()["one"] == s.SUBMITTED, 60)
    training.api.operator.resume("one")
    training.run(lambda w: w.states()["one"] == s.RUNNING, 100)
    assert not training.job("one").code_agreed, "the next edit is asked for again"
