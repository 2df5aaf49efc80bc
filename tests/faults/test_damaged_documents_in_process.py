"""A row that somebody changed into nonsense hurts nothing but itself, and comes back once it is corrected.

In process, on a fake clock: beside each damaged row an undamaged job trains to its end as if nothing had happened, no
training that runs is stopped by the damage, and what does not fit is shown.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.tables import plain
from coordinator.stores.cache import Cache
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import World
from tests.unit.coordinator.test_recovery import restart

NONSENSE: tuple[Any, ...] = ("x", {}, [1, 2], -1, 2**70, 1.5, True, "a.b", 1e300, [{}], {"a": {"b": []}}, "")

NAMED: list[tuple[str, str, Any]] = [
    ("gpus", "index", "x"),
    ("gpus", "node", {}),
    ("gpus", "node", None),
    ("gpus", "state", None),
    ("gpus", "gpu_type", [1, 2]),
    ("gpus", "state", 7),
    ("gpus", "held_by", {}),
    ("gpus", "job_id", [1]),
    ("jobs", "gpu_type", {}),
    ("jobs", "gpu_type", [1, 2]),
    ("jobs", "launch", "a.b"),
    ("jobs", "generation", 2**70),
    ("jobs", "gpu_ids", {"x": 1}),
    ("jobs", "reshape", "soon"),
    ("jobs", "uid", {}),
    ("jobs", "closed", "x"),
    ("jobs", "optional_num_gpus", "many"),
    ("jobs", "submit_ts", "yesterday"),
    ("jobs", "iters_done", 10**30),
    ("jobs", "reshape_cost_s", {}),
    ("jobs", "max_workers", "all"),
    ("jobs", "version", "new"),
    ("jobs", "node", 5),
    ("jobs", "sla", []),
]


def two_jobs() -> World:
    """One job trains on two GPUs and will for long; its twin, which nobody damages, comes in a moment."""
    world = World(gpus=4)
    world.submit("one", [2], Behaviour(iterations=10_000))
    world.run(lambda w: (m := w.machines.present("one")) is not None and m.trains and m.steps > 3)
    return world


def damage(world: World, table: str, field: str, value: Any) -> Any:
    """As an administrator would by hand, without regard to any version. What was there before."""
    key = "one" if table == "jobs" else world.job("one").gpu_ids[0]
    doc = world.users.get(table, key)
    assert doc is not None
    world.users._write(table, key, {**doc, field: value})  # past the checks of our own adapter
    return doc.get(field)


def trains(world: World) -> bool:
    launch = world.machines.present("one")
    return launch is not None and launch.alive and launch.trains


def until_the_twin_is_done(world: World) -> None:
    """Who looks at the store sees the damage there, so only what machines do is looked at meanwhile."""
    for _ in range(200):
        if world.states()["twin"] == s.COMPLETED:
            return
        world.tick()
    raise AssertionError(world.story())


def shown(world: World, table: str, field: str) -> bool:
    said = (
        str(world.api.jobs.job("one")["problems"])
        if table == "jobs"
        else str([g["problem"] for g in world.api.fleet.gpus()])
    )
    return f"{field} must be" in said


@pytest.mark.parametrize("again", [False, True], ids=["while it runs", "and begun anew"])
@pytest.mark.parametrize(("table", "field", "value"), NAMED)
def test_a_damaged_row_hurts_nothing_but_itself(table: str, field: str, value: Any, again: bool) -> None:
    world = two_jobs()
    before = damage(world, table, field, value)
    if again:
        world.boot()
    world.submit("twin", [2], Behaviour(iterations=20))
    for _ in range(5):
        world.tick()
    if field != "uid" and not (field == "closed" and again):  # of which no list knows whose, or that it is there
        assert shown(world, table, field)
    until_the_twin_is_done(world)
    assert trains(world) and world.machines.violations == []
    damage(world, table, field, before)
    for _ in range(10):
        world.tick()
    assert trains(world) and world.broken() == [] and world.states()["one"] == s.RUNNING


@pytest.mark.parametrize("name", ["../..", "other", 5, None])
def test_a_job_that_is_renamed_as_it_runs_keeps_its_name(name: Any) -> None:
    world = two_jobs()
    damage(world, "jobs", "job_id", name)
    world.submit("twin", [2], Behaviour(iterations=20))
    until_the_twin_is_done(world)
    assert [job["job_id"] for job in world.api.jobs.list_jobs(include_ended=False)] == ["one"]
    assert "job_id must be the name that it was let in with" in str(world.api.jobs.job("one")["problems"])
    assert trains(world) and world.machines.violations == [] and len(world.machines.launches) == 2


@pytest.mark.parametrize(("field", "value"), [("uid", {}), ("state", [1, 2]), ("launch", "a.b"), ("job_id", {})])
def test_a_coordinator_begins_whatever_a_row_holds_and_the_training_goes_on(field: str, value: Any) -> None:
    world = two_jobs()
    damage(world, "jobs", field, value)
    restart(world)
    world.submit("twin", [2], Behaviour(iterations=20))
    until_the_twin_is_done(world)
    assert trains(world) and world.machines.violations == []


@pytest.mark.parametrize("name", ["other", 5])
def test_a_job_that_is_renamed_while_no_coordinator_acts_keeps_the_name_and_the_gpus_of_its_launch(name: Any) -> None:
    world = two_jobs()
    damage(world, "jobs", "job_id", name)
    restart(world)
    assert "keeps the name" in world.job("one").doc["message"]
    world.submit("twin", [2], Behaviour(iterations=20))
    world.run(lambda w: w.states()["twin"] == s.COMPLETED)
    world.pass_time(2 * world.config.lease_s)
    assert trains(world) and len(world.machines.launches) == 2


def test_a_copy_of_its_row_under_another_name_takes_neither_the_name_nor_the_gpus_of_what_runs() -> None:
    world = two_jobs()
    copy = {**plain(world.job("one").doc), "_id": "a copy", "job_id": "other", "version": 99}
    world.users._write("jobs", "a copy", copy)
    for _ in range(2):
        restart(world)
        world.turn()
    world.submit("twin", [2], Behaviour(iterations=20))
    world.run(lambda w: w.states()["twin"] == s.COMPLETED)
    assert trains(world) and world.c.cache.jobs()["one"].state == s.RUNNING and len(world.machines.launches) == 2


@pytest.mark.parametrize("again", [False, True], ids=["while it runs", "and begun anew"])
@pytest.mark.parametrize("name", ["one", ""])
def test_a_running_job_whose_mark_of_being_open_is_emptied_is_not_taken_for_a_new_one(name: str, again: bool) -> None:
    world = two_jobs()
    damage(world, "jobs", "closed", None)
    damage(world, "jobs", "job_id", name)
    if again:
        restart(world)
    world.submit("twin", [2], Behaviour(iterations=20))
    until_the_twin_is_done(world)
    assert trains(world) and len(world.machines.launches) == 2
    assert [(job["job_id"], job["state"]) for job in world.api.jobs.list_jobs(include_ended=False)] == [
        ("one", s.RUNNING)
    ]
    assert JobRecord(world.users.get("jobs", "one") or {}).accepted


COPIES: dict[str, dict[str, Any]] = {
    "the same": {},
    "of a later version": {"version": 99},
    "of another job": {"uid": "u9"},
    "of a job that waits": {"uid": "u9", "state": s.SUBMITTED, "launch": 0, "gpu_ids": None},
    "without what intake wrote": {"uid": None, "closed": None, "state": s.SUBMITTED},
    "that makes no sense": {"generation": "x"},
}


@pytest.mark.parametrize("key", ["a copy", "the copy"])  # before and after the row of `one`
@pytest.mark.parametrize("edit", COPIES.values(), ids=COPIES.keys())
def test_a_copy_of_a_running_job_s_row_is_refused_and_changes_nothing_of_the_job(edit: Any, key: str) -> None:
    world = two_jobs()
    world.users._write("jobs", key, {**plain(world.job("one").doc), "_id": key, **edit})
    world.submit("twin", [2], Behaviour(iterations=20))
    until_the_twin_is_done(world)
    assert trains(world) and len(world.machines.launches) == 2
    told = world.machines.present("one")
    beat = world.c.telemetry.reports.newest_of_job(world.c.cache.jobs()["one"])
    assert told is not None and beat is not None and beat.progress.iterations >= told.steps - 2, "it is still heard"
    world.api.operator.cancel("one")
    world.run(lambda w: w.users.get("jobs", "one")["closed"])  # type: ignore[index]
    copy = world.users.get("jobs", key)
    assert copy is not None and copy["problems"] == ["job_id 'one' belongs to another job; choose another one"]
    world.pass_time(10)
    assert len(world.machines.launches) == 2, "a copy does not begin when its job has ended"


@pytest.mark.parametrize("uid", ["kept", "nonsense"])
def test_a_running_job_that_is_written_to_be_waiting_keeps_no_other_one_from_starting(uid: str) -> None:
    world = two_jobs()
    damage(world, "gpus", "index", None)
    damage(world, "jobs", "state", s.SUBMITTED)
    if uid == "nonsense":
        damage(world, "jobs", "uid", {})
        damage(world, "jobs", "job_id", "other")
    world.submit("twin", [2], Behaviour(iterations=20))
    until_the_twin_is_done(world)
    assert world.machines.violations == []


@pytest.mark.parametrize("elastic", [None, True])
def test_a_document_that_is_corrected_much_later_ends_no_training(elastic: bool | None) -> None:
    """Its heartbeats were not kept meanwhile, but answered: what was heard of is not taken to be gone."""
    world = World()
    world.submit("one", [2], Behaviour(iterations=10_000), elastic=elastic)
    world.run(lambda w: (m := w.machines.present("one")) is not None and m.trains and m.steps > 3)
    before = damage(world, "jobs", "launch", "a.b")
    world.boot()
    for _ in range(2 * int(world.config.wait_out_s)):
        world.tick()
    damage(world, "jobs", "launch", before)
    world.turn()  # before its next heartbeat
    for _ in range(10):
        world.tick()
    assert trains(world) and world.broken() == [] and world.states()["one"] == s.RUNNING
    assert len(world.machines.launches) == 1


def test_a_row_whose_id_cannot_be_looked_up_stops_nobody() -> None:
    cache = Cache(MemoryStore())
    odd = {"_id": {"node": "a"}, "gpu_id": "g", "node": "a", "index": 0, "gpu_type": "V100", "state": "idle"}
    cache.store.list = lambda table, where=None: [dict(odd)] if table == "gpus" else []  # type: ignore[method-assign]
    assert cache.refresh() == [] == cache.refresh()
    assert len(cache.gpus()) == 1


@pytest.mark.parametrize("seed", range(6))
def test_any_nonsense_in_any_fields_hurts_nothing_but_its_row(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        world = two_jobs()
        table = chance.choice(("jobs", "jobs", "gpus"))
        doc = world.users.get(table, "one" if table == "jobs" else world.job("one").gpu_ids[0])
        assert doc is not None
        fields = chance.sample(sorted(set(doc) - {"_id", "version", "cancel", "closed"}), chance.randint(1, 3))
        kept = {field: damage(world, table, field, chance.choice(NONSENSE)) for field in fields}
        if chance.random() < 0.5:
            world.boot()
        world.submit("twin", [2], Behaviour(iterations=20))
        until_the_twin_is_done(world)
        assert world.machines.violations == [], (fields, kept)
        assert world.c.trouble == ""
