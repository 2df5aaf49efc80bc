"""Single rows that a store has lost, or has in an older version, under a coordinator that acts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.errors import Transient
from coordinator.model import states as s
from coordinator.ports import Evidence
from coordinator.reconcile.actions import Wait
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import SHORT, World
from tests.unit.coordinator.test_recovery import ReadWhole, books, effects, put_back, three

KINDS = [MemoryStore, ReadWhole]  # SQLite knows which rows have changed, MongoDB does not


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_document_put_back_alone_gives_way_to_what_is_known(kind: Callable[[], MemoryStore]) -> None:
    world = three(kind())
    old = world.users.get("jobs", "one")
    assert old is not None
    world.api.operator.request("one", 1, None, True)
    world.run(lambda w: w.job("one").gpu_ids != tuple(old["gpu_ids"]) and w.states()["one"] == s.RUNNING)
    before, done = books(world), effects(world)
    world.users.put("jobs", old)
    world.pass_time(5)
    assert books(world) == before and effects(world) == done and not world.c.elector.rewound
    world.api.operator.cancel("one")
    world.run(lambda w: w.states()["one"] == s.CANCELLED and not w.machines.launches["one", 1].alive)
    assert set(world.states().values()) == {s.RUNNING, s.CANCELLED}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_one_gpu_that_is_dropped_comes_back_as_it_was(kind: Callable[[], MemoryStore]) -> None:
    world = World(gpus=1, store=kind())
    world.submit("one", [1], Behaviour(iterations=40_000))
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    before, done = books(world), effects(world)
    world.users.put("gpus", {"_id": "short-lived", "node": "elsewhere", "state": s.IDLE})
    world.users.delete("gpus", "short-lived")
    world.tick()
    assert not world.c.elector.rewound
    world.users.delete("gpus", "gpu-0")
    world.pass_time(10)
    assert books(world) == before and effects(world) == done


def test_a_listing_that_a_write_overtook_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    world = three(ReadWhole())
    listed = world.store.list("jobs", {"closed": False})
    world.c.cache.write_job(world.c.cache.jobs()["one"], {"message": "newer"}, "test")
    answers = [world.store.list("jobs", {"closed": None}), listed]
    whole = world.store.list
    monkeypatch.setattr(
        world.store, "list", lambda table, where=None: answers.pop(0) if answers else whole(table, where)
    )
    world.c.cache.refresh()
    assert not answers and not world.c.elector.rewound
    assert world.c.cache.jobs()["one"].doc["message"] == "newer"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", [{"version": "x"}, {"gpu_ids": "oops", "state": "weird"}])
def test_a_job_that_is_set_aside_outlasts_the_store_and_keeps_its_gpu(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[], MemoryStore], damage: dict[str, str]
) -> None:
    """On a cluster, where only reports say what runs."""
    world = World(gpus=2, store=kind())
    for name, elastic in (("one", None), ("steady", True)):
        world.submit(name, [1], Behaviour(iterations=40_000), elastic=elastic)
    world.run(lambda w: set(w.states().values()) == {s.RUNNING})
    monkeypatch.setattr(world.machines, "recall", lambda jobs: Evidence())
    before, done, doc = books(world)["gpus"], effects(world), world.users.get("jobs", "one")
    world.users.put("jobs", {**(doc or {}), **damage})
    if "state" in damage:  # else its former value counts
        world.boot()
    world.tick()
    assert world.c.cache.set_aside().keys() == {"one"}
    world.c._first = lambda: world._fill(2, ())
    put_back(world.users)
    for _ in range(int(2 * SHORT.wait_out_s)):
        world.tick()
    assert books(world)["gpus"] == before and effects(world) == done and not world.machines.violations
    assert world.machines.launches["one", 1].trains
    kept = world.users.get("jobs", "one") or {}
    assert (
        doc is not None
        and kept["uid"] == doc["uid"]
        and kept["version"] == (1 if "version" in damage else doc["version"] + 1)
    )
    assert {field: kept[field] for field in damage if field != "version"}.items() <= damage.items()


def test_a_gpu_that_changes_while_the_store_is_rebuilt_is_looked_at_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = three()
    (gpu,) = world.job("two").gpu_ids
    keep, left = world.machines.keep, [{"state": s.FAULTY, "problem": "it is hot"}]

    def meanwhile(doc: dict[str, object]) -> None:
        keep(doc)
        if left:
            world.users.update("gpus", gpu, {}, left.pop())

    world.c._first = lambda: world._fill(4, ())
    world.users.remove("gpus", [row["_id"] for row in world.users.list("gpus")])
    monkeypatch.setattr(world.c.cache, "gpus", dict)  # the rows that are written back say nothing of the jobs
    monkeypatch.setattr(world.machines, "keep", meanwhile)
    world.users.put("jobs", {**world.job("two").doc, "version": 1})
    world.c.elector.rewound = True
    with pytest.raises(Transient, match="once more"):
        world.c.recover()
    assert world.gpu(gpu).faulty and world.c.elector.rewound
    world.c.recover()
    assert (world.gpu(gpu).state, world.gpu(gpu).held_by) == (s.FAULTY, "two") and not world.c.elector.rewound


def test_no_job_is_reconciled_between_the_loss_of_the_store_and_its_mending() -> None:
    world = three()
    looked = list[str]()
    world.c.reconciler.reconcile = lambda job_id: (looked.append(job_id), Wait(None))[1]  # type: ignore[method-assign]
    world.c.elector.rewound = True
    world.c._reconcile("one")
    assert looked == []
    world.c.recover()
    assert {world.c.queue.take_key() for _ in range(3)} == {"one", "two", "three"}
    world.c._reconcile("one")
    assert looked == ["one"]
