"""On a cluster a store is emptied and all coordinators are new: each training keeps its one record, and its GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.ports import Doc, Evidence
from coordinator.recovery.lost_trainings import lost_trainings, take_lost_trainings, tell_lost_trainings
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import World
from tests.unit.coordinator.test_recovery import books, effects, put_back


class Cluster(World):
    """A world in which, besides pods, only the records of launches are left: as they were launched."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: dict[str, Doc] = {}
        launch = self.machines.launch

        def kept(doc: Any) -> None:
            self.launched[str(doc["job_id"])] = dict(doc)
            launch(doc)

        self.machines.launch = kept  # type: ignore[method-assign]

    def lose(self) -> None:
        """Empty the store and start a coordinator that knows nothing; nodes report what they have."""
        put_back(self.users)
        self.machines.launch = type(self.machines).launch.__get__(self.machines)  # type: ignore[method-assign]
        self.machines.recall = lambda jobs: Evidence()  # type: ignore[method-assign]
        self.boot()
        self.c.awaited.launcher_tells = True
        self.c.elector.try_to_lead()
        self.c.recover()
        self._fill(4, ())

    def wait(self, seconds: float) -> None:
        """Let time pass while the books are empty, which no observer may see at other times."""
        for _ in range(int(seconds)):
            self.tick()

    def launcher_begins(self) -> None:
        for doc in self.launched.values():
            self.users.insert("jobs", {key: value for key, value in doc.items() if key != "emulated_speed"})
        tell_lost_trainings(self.users, [*self.launched])


def two_that_share() -> Cluster:
    """One trains on other GPUs than it was launched with: it gave some to the other."""
    world = Cluster()
    world.submit("one", [1, 2, 4], Behaviour(iterations=4_000))
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.submit("two", [1], Behaviour(iterations=4_000))
    world.run(lambda w: w.states()["two"] == s.RUNNING and w.job("one").operation is None)
    assert len(world.job("one").gpu_ids) < 4
    return world


def test_each_training_keeps_its_one_record_and_is_told_nothing() -> None:
    world = two_that_share()
    before = books(world)
    done = effects(world)
    world.lose()
    world.submit("new", [8])
    world.wait(5)
    assert world.states() == {"new": s.SUBMITTED}
    assert effects(world) == done
    world.launcher_begins()
    world.wait(3)
    world.pass_time(60)
    after = books(world)
    assert after["jobs"].keys() == {"one", "two", "new"}
    assert {name: after["jobs"][name] for name in ("one", "two")} == before["jobs"]
    assert after["gpus"] == before["gpus"]
    assert effects(world) == done
    assert world.broken() == []


def test_nothing_is_decided_while_one_of_them_has_not_reported() -> None:
    """A newcomer would be given a GPU on which it trains."""
    world = two_that_share()
    done = effects(world)
    world.machines.of("one").partitioned = True
    world.lose()
    world.submit("new", [1])
    world.launcher_begins()
    world.wait(world.config.lease_s / 2)
    assert world.states()["new"] == s.SUBMITTED
    assert effects(world) == done
    world.wait(world.config.lease_s)
    assert not world.c.awaited.waits


def test_on_a_new_store_jobs_wait_for_a_launcher_and_no_longer() -> None:
    world = Cluster()
    world.lose()
    world.submit("one", [1], Behaviour(iterations=4_000))
    world.pass_time(20)
    assert world.states() == {"one": s.SUBMITTED}
    tell_lost_trainings(world.users, [])
    world.run(lambda w: w.states() == {"one": s.RUNNING})


@pytest.mark.parametrize("later", [[], ["three"]])
def test_what_the_launcher_adds_meanwhile_is_waited_for_too(later: list[str]) -> None:
    store = MemoryStore()
    assert lost_trainings(store) is None
    tell_lost_trainings(store, ["one", "two"])
    found = lost_trainings(store)
    assert found == ["one", "two"]
    tell_lost_trainings(store, later)
    take_lost_trainings(store, found)
    assert lost_trainings(store) == (["one", "two", *later] if later else [])
