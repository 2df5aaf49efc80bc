"""A journal of a short time reads what belongs to it, and says the same as one that reads the whole history."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from coordinator.api.ended_jobs import EndedJobs
from coordinator.events.event_log import EventLog
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.ports import Doc, Key
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import World

WINDOW_S = 300.0


class Counting(MemoryStore):
    """Counts the documents that are read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def get(self, table: str, key: Key) -> Doc | None:
        self.read += 1
        return super().get(table, key)

    def list(self, table: str, where: Mapping[str, Any] | None = None) -> list[Doc]:
        found = super().list(table, where)
        self.read += len(found)
        return found

    def events_after(self, seq: int, limit: int = 1000) -> Sequence[Doc]:
        before, found = self.read, super().events_after(seq, limit)
        self.read = before + len(found)
        return found

    def scan(self, table: str, fields: Sequence[str]) -> Iterator[Doc]:
        before, found = self.read, list(super().scan(table, fields))
        self.read = before  # of each some fields only
        return iter(found)


def with_history(world: World, rng: random.Random, jobs: int, gap_s: float) -> None:
    """Jobs that came, were reshaped and ended, and events of GPUs beside them, some of numbers that are gone."""
    for number in range(jobs):
        world.submit(f"j{number}", rng.choice([[1], [2, 4], [4]]), Behaviour(iterations=rng.randrange(5, 60)))
        world.pass_time(rng.choice([1.0, 10.0, gap_s]))
        world.c.event_log.flush()
    world.run(World.at_rest, limit_s=5_000)
    world.c.event_log.flush()
    kept = [event["_id"] for event in world.store.events_after(0, 100_000)]
    world.users.remove("events", rng.sample(kept, len(kept) // 20))
    world.boot()
    world.tick()


@contextmanager
def reading_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def all_events(log: EventLog, _: float) -> Sequence[Doc]:
        return log.after(0, 1_000_000)

    def all_ended(ended: EndedJobs, ts: float) -> Iterable[JobRecord]:
        jobs = map(JobRecord, ended._store.list("jobs", {"closed": True}))
        return [job for job in jobs if job.finish_ts >= ts]

    with monkeypatch.context() as naive:
        naive.setattr(EventLog, "events_since", all_events)
        naive.setattr(EndedJobs, "ended_since", all_ended)
        yield


@pytest.mark.parametrize("seed", range(4))
def test_it_says_the_same_as_one_that_read_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.events.event_log.KEPT", 16)  # many pages
    world, rng = World(), random.Random(seed)
    with_history(world, rng, 12, WINDOW_S / 2)
    world.submit("last", [2], Behaviour(iterations=10**6))
    world.run(lambda w: w.states()["last"] == s.RUNNING)
    for within_s in (0.0, 20.0, WINDOW_S, 2 * WINDOW_S, 50 * WINDOW_S):
        found = world.api.simulations.journal(within_s)
        listed = [view["job_id"] for view in world.api.jobs.list_jobs(False, within_s)]
        with reading_all(monkeypatch):
            assert found == world.api.simulations.journal(within_s)
            assert listed == [view["job_id"] for view in world.api.jobs.list_jobs(False, within_s)]
    assert any(came["gpu_s"] > 0 for came in world.api.simulations.journal(0.0)["came"].values())


def test_a_long_history_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.events.event_log.KEPT", 500)
    world = World(store=Counting())
    with_history(world, random.Random(0), 3, 10.0)
    store, old = world.store, world.clock.wall() - 100 * WINDOW_S
    assert isinstance(store, Counting)
    doc = store.get("jobs", "j0") or {}
    world.users.put_many("jobs", [{**doc, "_id": f"o{n}", "job_id": f"o{n}", "finish_ts": old} for n in range(500)])
    last = store.last_event()
    gpu = {"type": "gpu", "gpu_id": "g", "held_by": None, "job_id": None, "at": old}
    world.users.append_events([{**gpu, "_id": last + n} for n in range(1, 5_000)])
    world.boot()
    world.submit("new", [2], Behaviour(iterations=10**6))
    world.run(lambda w: w.states()["new"] == s.RUNNING)
    world.c.event_log.flush()
    store.read = 0
    assert set(world.api.simulations.journal(WINDOW_S)["came"]) >= {"new"}
    assert store.read < 1_200, "two pages of events at most"
    store.read = 0
    assert world.api.jobs.list_jobs(False, WINDOW_S)
    assert store.read < 100
