"""A row of a GPU that its node does not have is not believed: no job gets it, and it says why."""

from __future__ import annotations

import pytest

from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode, register_nodes
from tests.fakes.shims import Behaviour
from tests.fakes.world import GPU_TYPE, NODE, World

LONG = Behaviour(iterations=4_000)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (NODE, f"node {NODE} has no such GPU: delete this row"),
        ("ghost", "there is no node ghost: delete this row, or add the node"),
    ],
)
def test_no_job_is_given_a_gpu_that_was_only_written_down(
    node: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(gpus=1)
    world.users.insert("gpus", {"_id": "made-up", "node": node, "gpu_type": GPU_TYPE, "state": s.IDLE, "index": 1})
    world.submit("one", [1], LONG)
    world.submit("two", [1], LONG)
    world.run(lambda w: w.states()["one"] == s.RUNNING)
    world.pass_time(20)
    assert (world.states()["two"], world.job("one").gpu_ids) == (s.SUBMITTED, ("gpu-0",))
    shown = {view["gpu_id"]: (view["state"], view["problem"]) for view in world.api.fleet.gpus()}
    assert shown["made-up"] == (s.FAULTY, why)
    assert [record.message for record in caplog.records if "made-up" in record.message] == [
        f"GPU made-up is not used: {why}"
    ]


def test_it_is_used_once_its_node_has_it() -> None:
    world = World(gpus=1)
    world.users.insert("gpus", {"_id": "gpu-1", "node": NODE, "gpu_type": GPU_TYPE, "state": s.IDLE, "index": 1})
    world.submit("one", [2], LONG)
    world.pass_time(5)
    assert world.states()["one"] == s.SUBMITTED
    register_nodes(world.store, [FoundNode(NODE, tuple(FoundGpu(f"gpu-{i}", GPU_TYPE, None, True) for i in range(2)))])
    world.run(lambda w: w.states()["one"] == s.RUNNING)
    assert [view["problem"] for view in world.api.fleet.gpus()] == [None, None]


def test_a_gpu_that_a_job_has_is_left_alone_though_its_node_was_deleted() -> None:
    world = World.training([1, 2])
    before = world.machines.present("one")
    world.users.delete("nodes", NODE)
    world.pass_time(20)
    assert world.machines.present("one") is before and world.states() == {"one": s.RUNNING}
    assert {view["state"] for view in world.api.fleet.gpus() if view["held_by"] == "one"} == {s.IN_USE}
