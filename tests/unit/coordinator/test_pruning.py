"""A coordinator that really runs removes what is too old, but not by a clock that was set since the last one looked."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest

from adaptive_scheduler.settings import Settings
from coordinator import service
from coordinator.adapters.clock import SystemClock
from coordinator.model import states as s
from coordinator.service import Coordinator
from coordinator.stores import retention
from coordinator.stores.elector import Elector, Holder
from tests.fakes.shims import Machines
from tests.fakes.store import MemoryStore
from tests.fakes.world import MASTER, SHORT, FakeClock
from tests.patience import patient

DAY = 86_400.0


class SetClock(SystemClock):
    """One of which the wall clock was set ahead by so many seconds."""

    ahead_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead_s


def look_and_prune(store: MemoryStore, clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a coordinator run until it has removed what is too old for it."""
    removed, prune = threading.Event(), retention.prune

    def pruned(*given: object) -> retention.Removed:
        found = prune(*given)  # type: ignore[arg-type]
        removed.set()
        return found

    monkeypatch.setattr(retention, "prune", pruned)
    monkeypatch.setattr(service, "CLOCK_LOOK_S", 0.01)
    monkeypatch.setattr(service, "FIRST_PRUNE_S", 0.0)
    machines = Machines(FakeClock(), 1.0, 1.0)
    elector = Elector(store, clock, SHORT.term_s, Holder.of_process(os.getpid()))
    coordinator = Coordinator(
        store, machines, machines, clock, replace(SHORT, poll_s=0.1), Settings(), MASTER, elector, "test"
    )
    coordinator.start()
    try:
        assert removed.wait(patient(20.0))
    finally:
        coordinator.stop()
        monkeypatch.undo()


def test_only_a_clock_that_has_gone_on_as_it_should_makes_a_job_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryStore(), SetClock()
    for job_id, days in (("old", 31.0), ("new", 0.5)):
        at = clock.wall() - days * DAY
        store.insert("jobs", {
            "_id": job_id, "job_id": job_id, "uid": job_id, "state": s.COMPLETED, "closed": True, "submit_ts": at,
            "finish_ts": at, "version": 1,
        })  # fmt: skip
    look_and_prune(store, clock, monkeypatch)
    assert len(store.list("jobs")) == 2, "it has not seen its clock for a day"
    store.update("terms", retention.CLOCK, {}, {"beside_s": 2 * DAY})
    clock.ahead_s = 31 * DAY
    look_and_prune(store, clock, monkeypatch)
    assert len(store.list("jobs")) == 2, "it was set meanwhile"
    clock.ahead_s = 0.0
    look_and_prune(store, clock, monkeypatch)
    assert len(store.list("jobs")) == 2, "and set back"
    store.update("terms", retention.CLOCK, {}, {"beside_s": 2 * DAY})
    look_and_prune(store, clock, monkeypatch)
    assert [job["_id"] for job in store.list("jobs")] == ["new"]


def test_a_document_that_no_write_finds_does_not_end_the_pruning_of_others() -> None:
    """MongoDB takes an object as `_id`."""
    rows = [{"_id": {"a": 1}, "closed": True, "job_id": "odd"}, {"_id": "b", "job_id": "b", "closed": True, "uid": "u"}]
    assert list(retention.Past.from_rows(rows, []).ended) == ["b"]
