"""While a coordinator cannot renew its term, as on a full disk, what it shows stays true where that is safe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.errors import Transient
from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World

HERE = replace(SHORT, fences=False, many_pods=False)


def full(*_args: Any, **_more: Any) -> Any:
    raise Transient("the disk is full")


def cannot_write(config: Any, monkeypatch: pytest.MonkeyPatch, iterations: int = 10_000) -> World:
    """A job trains, and the term of its coordinator is over, since no write succeeds."""
    w = World(config=config)
    w.submit("one", [1], Behaviour(iterations=iterations))
    w.run(lambda w: w.states()["one"] == s.RUNNING)
    for name in ("insert", "update", "update_many", "put", "put_many"):
        monkeypatch.setattr(w.store, name, full)
    w.pass_time(2 * config.term_s)
    assert not w.c.elector.leads
    return w


def steps(w: World) -> int:
    return int(w.api.jobs.job("one")["iters_done"])


def test_on_one_machine_reports_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    w = cannot_write(HERE, monkeypatch)
    before = steps(w)
    w.pass_time(20.0)
    trainer = w.machines.present("one")
    assert trainer is not None and trainer.trains
    assert before < steps(w) and trainer.steps - steps(w) < 20
    assert "not heard from" not in w.api.jobs.job("one")["message"]


@pytest.mark.parametrize("why", ["leases end trainings", "another coordinator acts"])
def test_elsewhere_none_is_taken(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may renew no lease that another coordinator waits out."""
    w = cannot_write(SHORT if why == "leases end trainings" else HERE, monkeypatch)
    if why == "another coordinator acts":
        w.c.succeeded.set()
    before = w.c.telemetry.reports.heard
    w.pass_time(5.0)
    assert w.c.telemetry.reports.heard == before


def test_the_end_of_a_training_is_heard_by_who_acts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    w = cannot_write(HERE, monkeypatch, iterations=60)
    w.run(lambda w: (trainer := w.machines.present("one")) is None or not trainer.trains)
    w.pass_time(5.0)
    assert w.states()["one"] == s.RUNNING
    monkeypatch.undo()
    w.run(lambda w: w.states()["one"] == s.COMPLETED)
