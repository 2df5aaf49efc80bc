"""A newcomer whose command would certainly fail is found out before its victim is touched."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from adaptive_scheduler.decision import Explanation, Move
from coordinator.model import states as s
from coordinator.model.gang import merged_report
from coordinator.reconcile.gang_observer import startup_problem
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World
from tests.unit.coordinator.situations import BOOKED, fresh, newcomer, victim, world, written

WHY = "no such file: ./nope (in /home); correct the job's command"
UNFIT = msgspec.structs.replace(fresh("two"), unfit=WHY)


def stops(w: World, job: str) -> int:
    return sum(n for command, n in w.machines.executed.items() if command.startswith(f"{job}:") and "stop" in command)


def test_it_fails_at_once_with_the_sentence() -> None:
    assert written(world(newcomer(), UNFIT, BOOKED, victim()), "failed")["message"] == f"cannot start: {WHY}"
    assert written(world(newcomer(), fresh("two"), BOOKED, victim()), "initialized")


def test_one_that_has_trained_is_tried_again_as_after_a_failed_launch() -> None:
    changes = written(world(newcomer(iters_done=30), UNFIT, BOOKED, victim()), "undo")
    assert (changes["state"], changes["retries"]) == (s.SUBMITTED, 1) and WHY in changes["message"]
    last = newcomer(iters_done=30, retries=SHORT.retries)
    assert WHY in written(world(last, UNFIT, BOOKED, victim()), "hold")["held"]


def test_of_a_gang_the_pod_that_cannot_start_speaks_for_all() -> None:
    others = fresh("two"), msgspec.structs.replace(UNFIT, member=1)
    together = merged_report(dict(enumerate(others)), 2)
    assert together is not None and together.unfit == WHY
    assert startup_problem([None, fresh(), UNFIT]) == WHY and startup_problem([None, fresh()]) is None


@pytest.mark.parametrize("early", [True, False])
def test_the_victim_is_not_stopped_for_it_and_keeps_its_gpus(early: bool) -> None:
    w = World(config=replace(SHORT, early_initialization=early))
    w.submit("one", [2, 4], Behaviour(iterations=400))
    w.run(lambda w: w.job("one").state == s.RUNNING and len(w.job("one").gpu_ids) == 4)
    before, pid = w.job("one"), w.machines.present("one").status.trainer_pid
    w.submit("two", [2], Behaviour(unfit=WHY))
    w.run(lambda w: bool(w.job("two").doc.get("closed")))
    assert (w.job("two").state, w.job("two").doc["message"]) == (s.FAILED, f"cannot start: {WHY}")
    w.run(lambda w: w.job("one").state == s.RUNNING)
    if early:
        assert stops(w, "one") == 0
        assert (w.job("one").generation, w.job("one").gpu_ids) == (before.generation, before.gpu_ids)
        assert w.machines.present("one").status.trainer_pid == pid
        assert all((w.gpu(f"gpu-{i}").job, w.gpu(f"gpu-{i}").held_by) == ("one", "one") for i in range(4))


def test_a_move_is_undone_whose_next_launch_could_not_start() -> None:
    w = World(nodes=[FoundNode("n2", tuple(FoundGpu(f"far-{i}", "V100", None, True) for i in range(2)))])
    w.submit("one", [2], Behaviour(iterations=400))
    w.run(lambda w: w.job("one").state == s.RUNNING)
    before, w.machines.of("one").unfit = w.job("one"), WHY
    far = "n2" if before.node == "n1" else "n1"
    w.order(Move("one", far, 2, Explanation("test", "so it was decided.")))
    w.run(lambda w: WHY in str(w.job("one").doc.get("message")))
    after = w.job("one")
    assert (after.node, after.launch, after.generation, stops(w, "one")) == (before.node, 1, before.generation, 0)
