"""The GPUs of one step are written together, and whatever was left of such a write is gone on from."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import Conflict, Transient
from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import World


class Counted(MemoryStore):
    """Counts what goes to the table of GPUs, and loses the reply of what is written there together if told to."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[list[str]] = []
        self.alone: list[str] = []
        self.loses_reply = self.refuses = False

    def update(self, table: str, key: Any, expect: Any, changes: Any) -> Any:
        if table == "gpus":
            self.alone.append(key)
        return super().update(table, key, expect, changes)

    def update_many(self, table: str, updates: Any) -> int:
        if self.refuses:
            raise Transient("the store went away before the write")
        alone = list(self.alone)
        changed = super().update_many(table, updates)
        self.together.append([key for key, _, _ in updates])
        self.alone = alone
        if self.loses_reply:
            raise Transient("the store went away after the write")
        return changed


def reshaped(store: Counted) -> World:
    """Job one gives two of its four GPUs to job two, which trains to its end, and takes them back."""
    world = World(store=store)
    world.submit("one", [2, 4], Behaviour(iterations=4_000))
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    store.together.clear()
    store.alone.clear()
    world.submit("two", [2], Behaviour(iterations=20))
    world.run(lambda w: w.states().get("two") == s.COMPLETED and len(w.job("one").gpu_ids) == 4)
    world.run(lambda w: w.states()["one"] == s.RUNNING and w.job("one").operation is None)
    return world


def test_a_reshape_writes_its_gpus_once_for_each_step_however_many_they_are() -> None:
    store = Counted()
    world = reshaped(store)
    pair = store.together[0]
    assert store.together == [pair] * 4, world.story()  # reserved, taken over, freed by two, taken by one
    assert len(pair) == 2 and store.alone == []


@pytest.mark.parametrize("what", ["loses_reply", "refuses"])
def test_a_write_of_several_of_unknown_outcome_is_read_and_not_sent_blindly_again(what: str) -> None:
    store = Counted()
    world = World(store=store)
    world.submit("one", [4], Behaviour(iterations=4_000))
    world.c.loop.tick()
    setattr(store, what, True)
    sent = len(store.together)
    if what == "refuses":
        with pytest.raises(Conflict):
            world.c.reconciler.reconcile("one")
        setattr(store, what, False)
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    assert [len(part) for part in store.together[sent:]] == [4, 4]  # reserved once, occupied once
    assert all(row["held_by"] == "one" for row in world.users.list("gpus"))


def test_of_gpus_of_which_one_is_taken_meanwhile_the_others_are_given_back() -> None:
    store = Counted()
    world = World(store=store)
    world.submit("one", [4], Behaviour(iterations=4_000))
    world.c.loop.tick()
    world.users.update("gpus", "gpu-2", {}, {"state": s.IN_USE, "job_id": "other", "held_by": "other"})
    with pytest.raises(Conflict):
        world.c.reconciler.reconcile("one")
    mine = [row["_id"] for row in world.users.list("gpus") if row["job_id"] == "one"]
    assert mine == ["gpu-0", "gpu-1", "gpu-3"]
    world.c.reconciler.reconcile("one")
    rows = {row["_id"]: row["job_id"] for row in world.users.list("gpus")}
    assert rows == {"gpu-0": None, "gpu-1": None, "gpu-2": "other", "gpu-3": None}, world.story()
    assert world.job("one").state == s.SUBMITTED
