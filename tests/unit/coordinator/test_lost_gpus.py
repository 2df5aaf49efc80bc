"""GPUs that are gone stay with their job until it ends, and serve no job until they are back."""

from __future__ import annotations

from coordinator.model import states as s
from coordinator.model.records import GpuRecord
from coordinator.stores.bootstrap import FoundGpu, register_gpus
from tests.fakes.shims import Behaviour
from tests.fakes.world import GPU_TYPE, NODE, World


def register(world: World, number: int) -> None:
    """As a start of the coordinator does; it begins with nothing in memory."""
    register_gpus(world.users, NODE, [FoundGpu(f"gpu-{i}", GPU_TYPE, None, True) for i in range(number)])
    world.boot()


def gpus(world: World) -> list[GpuRecord]:
    return [GpuRecord(doc) for doc in world.users.list("gpus")]


def gpu_states(world: World) -> list[tuple[str, str | None]]:
    return [(gpu.state, gpu.job) for gpu in gpus(world)]


def test_gpus_that_are_gone_stay_with_their_job_and_then_serve_nobody_until_they_are_back() -> None:
    world = World.training([4])
    register(world, 2)
    world.pass_time(20)
    assert gpu_states(world) == [(s.IN_USE, "one")] * 2 + [(s.FAULTY, "one")] * 2
    world.machines.end_trainer("one", 0)
    world.run(lambda w: w.at_rest(), 60)
    assert gpu_states(world) == [(s.IDLE, None)] * 2 + [(s.FAULTY, None)] * 2
    world.submit("two", [1, 2, 4], Behaviour(iterations=100))
    world.submit("three", [3, 4], Behaviour(iterations=20))
    world.run(lambda w: w.states()["two"] == s.COMPLETED and w.job("two").doc["closed"], 200)
    assert world.states()["three"] == s.SUBMITTED
    assert {launch.doc["num_gpus"] for launch in world.machines.launches.values() if launch.job == "two"} <= {1, 2}
    register(world, 4)
    assert gpu_states(world) == [(s.IDLE, None)] * 4
    world.run(lambda w: w.states()["three"] == s.COMPLETED, 100)


def test_a_gpu_that_is_back_while_its_job_still_has_it_is_in_use_again() -> None:
    world = World.training([4])
    register(world, 2)
    world.pass_time(5)
    register(world, 4)
    assert gpu_states(world) == [(s.IN_USE, "one")] * 4


def promised() -> World:
    """Job `one` trains on all four GPUs, and `two`, which is coming up, will get the last two."""
    world = World.training([1, 2, 4])
    world.submit("two", [2], Behaviour(launch_s=10, iterations=100))
    world.run(lambda w: {g.state for g in gpus(w)[2:]} == {s.RESERVED}, 60)
    return world


def test_a_gpu_that_was_only_promised_when_it_went_is_neither_used_nor_freed() -> None:
    world = promised()
    register(world, 2)
    for _ in range(200):
        world.tick()
        assert [gpu.state for gpu in gpus(world)[2:]] == [s.FAULTY] * 2, world.story()
        users = {world.machines.owners[g].job for g in ("gpu-2", "gpu-3") if g in world.machines.owners}
        assert "two" not in users, world.story()
    assert world.machines.violations == []


def test_a_promised_gpu_that_went_and_came_back_is_promised_still() -> None:
    world = promised()
    before = [(g.state, g.job, g.held_by) for g in gpus(world)]
    register(world, 2)
    register(world, 4)
    assert [(g.state, g.job, g.held_by) for g in gpus(world)] == before
    world.run(lambda w: w.states()["two"] == s.COMPLETED, 200)
