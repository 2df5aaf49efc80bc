"""On Kubernetes silence ends no training that has not shown that it resumes: its work would be lost."""

from __future__ import annotations

import dataclasses

import pytest

from coordinator.model import states as s
from sidecar.protocol import ENDLESS_LEASE_S, Checkpoint
from tests.fakes.shims import Behaviour, Launch
from tests.fakes.world import SHORT, World

LONG_S = 10 * SHORT.wait_out_s


def plain_training(steps: int = 20_000) -> World:
    """A world whose job `one` trains and has shown nothing."""
    return World.training([4], Behaviour(iterations=steps), elastic=None)


def spawned_at(world: World) -> float | None:
    launch = world.machines.present("one")
    return launch.status.spawn_at if launch and launch.trains else None


@pytest.mark.parametrize("fault", ["node cut off", "store away"])
def test_it_trains_on_through_any_outage_and_completes_in_the_same_process(fault: str) -> None:
    world = plain_training(steps=8_000)
    before = spawned_at(world)
    world.machines.of("one").partitioned, world.store.down = fault == "node cut off", fault == "store away"
    world.pass_time(LONG_S)
    assert spawned_at(world) == before
    world.machines.of("one").partitioned = world.store.down = False
    world.run(lambda w: w.at_rest(), 3_000)
    assert world.states() == {"one": s.COMPLETED}
    assert world.machines.executed["one:1:start"] == 1 and len(world.machines.launches) == 1


def test_its_gpus_serve_nobody_else_while_it_is_silent_also_after_the_coordinator_was_replaced() -> None:
    world = plain_training()
    world.machines.of("one").partitioned = True
    world.submit("two", [4], Behaviour(iterations=10))
    world.pass_time(SHORT.wait_out_s)
    world.boot()
    world.pass_time(LONG_S)
    assert world.states() == {"one": s.RUNNING, "two": s.SUBMITTED}
    said = world.api.jobs.job("one")["message"]
    assert said.startswith("not heard from for ") and "it may train on, so it keeps 4 GPUs" in said
    assert not world.machines.violations


def test_once_its_pod_was_deleted_by_force_it_has_failed_and_its_gpus_serve_others() -> None:
    world = plain_training()
    world.machines.of("one").partitioned = True
    world.submit("two", [4], Behaviour(iterations=10))
    world.pass_time(LONG_S)
    world.machines.launches["one", 1].vanished = True
    world.machines.kill_shim("one")
    world.run(lambda w: w.states() == {"one": s.FAILED, "two": s.COMPLETED}, 200)
    assert "not started again" in world.job("one").doc["message"]


def test_a_pod_that_was_deleted_by_force_and_is_heard_keeps_its_gpus() -> None:
    world = plain_training()
    world.machines.launches["one", 1].vanished = True
    world.pass_time(LONG_S / 4)
    assert world.states() == {"one": s.RUNNING}


def test_a_cancelled_one_that_is_silent_keeps_its_gpus_until_it_has_certainly_ended() -> None:
    world = plain_training()
    world.machines.of("one").partitioned = True
    world.pass_time(SHORT.wait_out_s)
    world.api.operator.cancel("one")
    world.pass_time(LONG_S)
    assert world.gpu("gpu-0").held_by == "one"
    world.machines.of("one").partitioned = False
    world.run(lambda w: w.at_rest(), 200)
    assert world.states() == {"one": s.CANCELLED}


@pytest.mark.parametrize("deleted", ["while none acts", "while one acts"])
def test_the_gpus_of_one_whose_document_was_deleted_are_its_own_while_it_may_train(deleted: str) -> None:
    world = plain_training()
    launch = world.machines.launches["one", 1]
    world.machines.of("one").partitioned = True
    world.users.delete("jobs", "one")
    if deleted == "while one acts":
        world.pass_time(5)
    world.boot()
    world.submit("two", [4], Behaviour(iterations=10))
    world.pass_time(LONG_S)
    assert launch.trains and world.gpu("gpu-0").held_by == "one" and not world.machines.violations
    world.machines.of("one").partitioned = False
    world.machines.remove({"job_id": "one", "launch": 1})  # as the launcher does without its document
    world.run(lambda w: w.states() == {"two": s.COMPLETED}, 100)
    assert not launch.alive and not any(gpu.get("unleased") for gpu in world.users.list("gpus"))


def test_its_gpus_say_whether_it_has_a_lease_also_when_it_gets_one() -> None:
    world = plain_training()
    assert all(world.gpu(g).doc.get("unleased") for g in world.job("one").gpu_ids)
    world.machines.launches["one", 1].checkpoint = world.machines.disk["one"] = Checkpoint("g1-s5", 5, 1)
    world.run(lambda w: not w.job("one").unleased, 60)
    assert not any(world.gpu(g).doc.get("unleased") for g in world.job("one").gpu_ids)
    assert {(gpu["state"], gpu["held_by"]) for gpu in world.users.list("gpus")} == {(s.IN_USE, "one")}


def test_on_one_machine_nobody_is_told_to_delete_a_pod() -> None:
    world = World(config=dataclasses.replace(SHORT, many_pods=False, fences=False))
    world.submit("one", [4], Behaviour(iterations=20_000), elastic=None)
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.machines.of("one").partitioned = True
    world.pass_time(SHORT.wait_out_s)
    assert "pod" not in world.api.jobs.job("one")["message"]


def test_one_that_shows_that_it_resumes_gets_a_lease_and_then_silence_moves_it() -> None:
    world = plain_training()
    launch = world.machines.launches["one", 1]
    assert launch.status.lease_deadline > ENDLESS_LEASE_S and world.job("one").unleased
    launch.checkpoint = world.machines.disk["one"] = Checkpoint("g1-s5", 5, 1)
    world.run(lambda w: not w.job("one").unleased, 60)
    assert launch.status.lease_deadline <= world.clock.time + SHORT.lease_s
    world.machines.of("one").partitioned = True
    world.run(lambda w: ("one", 2) in w.machines.launches, 120)
    assert (launch.status.trainer, launch.status.fenced) == ("exited", True)
    assert not world.machines.violations


def test_one_that_is_cut_off_as_it_shows_that_it_resumes_counts_as_without_lease_until_its_lease_was_seen() -> None:
    world = plain_training()
    launch = world.machines.launches["one", 1]
    world.users.update("jobs", "one", {}, {"resumes": "hook"})
    world.machines.of("one").partitioned = True
    world.pass_time(LONG_S)
    assert launch.trains and world.states() == {"one": s.RUNNING}
    world.machines.of("one").partitioned = False
    world.run(lambda w: not w.job("one").unleased, 60)


def test_one_whose_record_says_that_it_resumes_has_a_lease_from_its_start() -> None:
    world = World.training([4], Behaviour(iterations=4_000))
    assert not world.job("one").unleased
    assert world.machines.launches["one", 1].status.lease_deadline <= world.clock.time + SHORT.lease_s


def test_one_whose_shim_never_takes_a_shorter_lease_counts_as_without_lease_also_after_a_reshape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shim of an older version keeps the latest deadline."""
    monkeypatch.setattr(
        Launch, "renew", lambda self, at, _: self.change(lease_deadline=max(self.status.lease_deadline, at))
    )
    world = World.training([2, 4], Behaviour(iterations=20_000), elastic=None)
    launch = world.machines.launches["one", 1]
    launch.checkpoint = world.machines.disk["one"] = Checkpoint("g1-s5", 5, 1)
    world.submit("two", [2], Behaviour(iterations=20_000))
    world.run(lambda w: w.job("one").generation > 1 and set(w.states().values()) == {s.RUNNING}, 200)
    assert world.job("one").unleased and not launch.status.leased
    world.machines.of("one").partitioned = True
    world.pass_time(LONG_S)
    assert launch.trains and len(world.job("one").gpu_ids) == 2 and not world.machines.violations
