"""Promise: a training that never saves, and whose owner allows it, gives its GPU up frozen in memory and loses nothing.

In a whole coordinator with machines of the tests' own, whose driver freezes and thaws.
"""

from __future__ import annotations

from typing import Any

import pytest

from adaptive_scheduler.decision import BrokenDecision, Explanation, Move, Requeue, check
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.scheduling.intake import problems
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.unit.adaptive_scheduler.worlds import cluster, running

FREEZES = {"elastic": None, "freeze": True}


def training(counts: list[int] | None = None, **more: Any) -> World:
    """A world whose job `one` trains on one GPU, and never saves."""
    behaviour = Behaviour(iterations=4_000, freezes=True, ignores_stop=True)
    return World.training(counts or [1], behaviour, **{**FREEZES, **more})


def launch(world: World) -> Any:
    """The launch of job `one`."""
    found = world.machines.present("one")
    assert found is not None
    return found


def frozen(world: World) -> World:
    """The same, once `one` was suspended and has given its GPU up."""
    world.api.operator.suspend("one")
    world.run(lambda w: w.states()["one"] == s.SUBMITTED and w.api.fleet.gpus()[0]["state"] == "idle", 60)
    return world


def test_a_suspended_training_lets_others_have_its_gpu_and_goes_on_where_it_was() -> None:
    world = training()
    world.pass_time(20)
    assert world.api.jobs.job("one")["left_alone"] == (
        "keeps its 1 GPU until it ends or is frozen in memory: it has not shown that it can save and resume"
    )
    frozen(world)
    world.tick()
    done = launch(world).steps
    view = world.api.jobs.job("one")
    assert (launch(world).status.trainer, launch(world).number, done > 10) == ("frozen", 1, True)
    assert (view["suspended"], view["num_gpus"], view["gpu_ids"]) == (True, 0, None)
    assert view["message"] == "one is suspended and frozen in memory; `reshape resume one` lets it go on."
    world.submit("two", [4], Behaviour(iterations=40))
    world.run(lambda w: w.states()["two"] == s.COMPLETED, 200)
    world.boot()
    world.pass_time(60)
    assert (launch(world).status.trainer, launch(world).steps) == ("frozen", done)
    world.api.operator.resume("one")
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    world.pass_time(5)
    assert launch(world).number == 1, "it is the same launch"
    assert done < launch(world).steps < done + 10
    assert world.job("one").doc["frozen"] is None
    world.machines.of("one").iterations = launch(world).steps + 5
    world.run(World.at_rest, 60)
    assert world.states()["one"] == s.COMPLETED
    assert [number for name, number in world.machines.launches if name == "one"] == [1]


def test_it_goes_on_on_another_gpu_of_its_node_while_its_own_is_used() -> None:
    world = frozen(training())
    world.submit("two", [1], Behaviour(iterations=40_000))
    world.run(lambda w: w.states()["two"] == s.RUNNING, 60)
    world.api.operator.resume("one")
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    assert world.job("one").gpu_ids != world.job("two").gpu_ids
    assert launch(world).status.gpu_ids == list(world.job("one").gpu_ids)


def test_what_the_driver_does_not_freeze_trains_on_and_is_asked_again_only_by_its_user() -> None:
    world = training()
    why = "it has set up NCCL; the driver freezes a training with one process on one GPU, without it"
    world.machines.of("one").unfrozen = [why]
    world.api.operator.suspend("one")
    world.run(lambda w: w.job("one").unfrozen == why, 60)
    world.pass_time(60)
    assert (world.states()["one"], launch(world).status.trainer) == (s.RUNNING, "running")
    assert world.api.jobs.job("one")["message"] == (
        "one trains on, although an operator suspended it: it has not shown that it can save and resume, and it "
        f"cannot be frozen: {why}; `reshape resume one` withdraws that."
    )
    assert world.api.jobs.job("one")["left_alone"] == (
        f"keeps its 1 GPU until it ends: it has not shown that it can save and resume, nor can it be frozen: {why}"
    )
    world.api.operator.resume("one")
    frozen(world)
    assert launch(world).status.trainer == "frozen"


def test_where_no_shim_can_freeze_nothing_is_stopped() -> None:
    world = training()
    launch(world).change(freezes=False)
    world.tick()
    world.api.operator.suspend("one")
    world.run(lambda w: bool(w.job("one").unfrozen), 60)
    assert launch(world).status.trainer == "running"
    assert world.job("one").unfrozen == "its shim freezes trainings on a machine's own GPUs only"


def test_a_frozen_training_that_dies_has_failed_with_a_sentence() -> None:
    world = frozen(training())
    launch(world).change(trainer="exited", exit_code=-9, exit_note="it ended while it was frozen", exit_at=1e6)
    world.run(World.at_rest, 60)
    assert world.job("one").doc["message"] == "it ended while it was frozen"
    assert world.states()["one"] == s.FAILED


def test_a_frozen_training_whose_processes_are_gone_has_failed_and_is_not_run_twice() -> None:
    world = frozen(training())
    world.machines.kill_shim("one")
    world.run(World.at_rest, 400)
    assert world.job("one").doc["message"] == "its frozen process is gone, with all that it had not saved"
    assert [number for name, number in world.machines.launches if name == "one"] == [1]


def test_a_training_that_cannot_be_thawed_is_tried_again_and_then_held_without_loss() -> None:
    world = frozen(training())
    done = launch(world).steps
    world.machines.of("one").unfrozen = ["1.0 GiB are free on GPU gpu-0, and it needs 2.2 GiB"] * 4
    world.api.operator.resume("one")
    world.run(lambda w: bool(w.job("one").held), 400)
    view = world.api.jobs.job("one")
    assert (view["state"], view["suspended"], launch(world).status.trainer) == ("submitted", True, "frozen")
    assert view["message"].startswith("one is held: it could not be thawed: 1.0 GiB are free on GPU gpu-0")
    assert view["message"].endswith("`reshape resume one` thaws it; `reshape cancel one` ends it.")
    assert all(gpu["state"] == "idle" for gpu in world.api.fleet.gpus())
    world.api.operator.resume("one")
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    assert launch(world).steps >= done


def test_a_frozen_training_is_cancelled_with_its_launch() -> None:
    world = frozen(training())
    world.api.operator.cancel("one")
    world.run(World.at_rest, 60)
    assert world.states() == {"one": s.CANCELLED}
    assert not launch(world).alive


def test_one_that_ends_before_it_is_frozen_has_ended() -> None:
    world = training()
    world.api.operator.suspend("one")
    world.run(lambda w: launch(w).calls_driver is not None, 60)
    world.machines.end_trainer("one", 0)
    world.run(World.at_rest, 60)
    assert world.states() == {"one": s.COMPLETED}


@pytest.mark.parametrize(
    ("counts", "more", "said"),
    [
        ([2], {}, "and with 2 GPUs it cannot be frozen, only with one"),
        ([1], {"freeze": None}, "it has not shown that it can save and resume, so it would begin again from the start"),
    ],
)
def test_what_may_not_be_frozen_is_not_suspended(counts: list[int], more: dict[str, Any], said: str) -> None:
    world = training(counts, **more)
    with pytest.raises(Rejected) as refused:
        world.api.operator.suspend("one")
    assert said in str(refused.value)


def test_one_that_saves_is_stopped_as_ever() -> None:
    world = World.training([1], Behaviour(iterations=4_000, freezes=True), freeze=True)
    world.api.operator.suspend("one")
    world.run(lambda w: w.job("one").doc.get("down") == 1, 60)
    assert world.machines.disk["one"].step > 0


def test_one_that_can_be_frozen_may_wait_but_is_neither_reshaped_nor_moved() -> None:
    snapshot = cluster(running("one", 1, rigid=True, freezes=True))
    check(snapshot, [Requeue("one", Explanation("x", "x"))])
    with pytest.raises(BrokenDecision, match="must not be stopped"):
        check(snapshot, [Move("one", "b", 1, Explanation("x", "x"))])


def test_intake_takes_true_or_false() -> None:
    doc = {"job_id": "a", "state": "submitted", "command": ["x"], "optional_num_gpus": [1]}
    assert problems({**doc, "freeze": True}) == []
    (said,) = problems({**doc, "freeze": "driver"})
    assert said == "freeze must be true (NVIDIA's driver may freeze it in memory) or false, not 'driver'"
