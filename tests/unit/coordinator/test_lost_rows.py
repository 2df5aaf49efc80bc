"""Single rows that a store has lost, or has in an older version, under a coordinator that acts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.model import states as s
from tests.fakes.store import MemoryStore
from tests.unit.coordinator.test_recovery import ReadWhole, books, effects, three

KINDS = [MemoryStore, ReadWhole]  # SQLite knows which rows have changed, MongoDB does not


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_document_put_back_alone_gives_way_to_what_is_known(kind: Callable[[], MemoryStore]) -> None:
    world = three(kind())
    old = world.users.get("jobs", "one")
    assert old is not None
    world.api.request("one", 1, None, True)
    world.run(lambda w: w.job("one").gpu_ids != tuple(old["gpu_ids"]) and w.states()["one"] == s.RUNNING)
    before, done = books(world), effects(world)
    world.users.put("jobs", old)
    world.pass_time(5)
    assert books(world) == before and effects(world) == done and not world.c.elector.rewound
    world.api.cancel("one")
    world.run(lambda w: w.states()["one"] == s.CANCELLED and not w.machines.launches["one", 1].alive)
    assert set(world.states().values()) == {s.RUNNING, s.CANCELLED}


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
