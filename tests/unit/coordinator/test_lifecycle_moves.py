"""What happens next when a job moves, yields or has reached its target, situation by situation."""

from __future__ import annotations

import pytest

from coordinator.core import states as s
from coordinator.core.lifecycle import next_step
from coordinator.core.records import Doc
from coordinator.core.steps import Launch, Remove, Start, Stop
from tests.unit.coordinator.situations import EXITED, WALL, fresh, gpu, job, mine, seen, waits, world, written


def op(kind: str, *to: str, **more: object) -> Doc:
    return {"kind": kind, "from": ["a"], "to": list(to), "generation": 2, "how": "in place", **more}


def moving(**more: object) -> Doc:
    return op("move", "b", node="m", from_node="n", how="relaunch", **more)


MOVING = job(s.ADJUSTING, "a", op=moving(), node="n", launch=1)
MINE = mine("a", "b")


def test_a_move_first_takes_the_gpus_where_it_goes() -> None:
    changes = written(world(MOVING, seen(), [*mine("a"), gpu("b")]), "claim")
    assert (changes["state"], changes["job_id"], changes["held_by"]) == (s.IN_USE, "one", "one")


def test_a_move_whose_gpus_somebody_got_first_stays_where_it_is_undisturbed() -> None:
    changes = written(world(MOVING, seen(), [*mine("a"), gpu("b", "two", "two")]), "undo")
    assert (changes["state"], changes["reshape"]) == (s.RUNNING, None)
    assert changes["message"] == "stays on n: GPU b was given to job two meanwhile"


def test_then_it_saves_and_stops_and_its_launch_is_removed() -> None:
    assert next_step(world(MOVING, seen(), MINE)) == Stop(2)
    assert isinstance(next_step(world(MOVING, EXITED, MINE)), Remove)
    waits(world(MOVING, EXITED, MINE, remove_asked=True), "being removed")


def test_once_that_is_gone_it_is_granted_the_other_node_and_another_launch() -> None:
    changes = written(world(MOVING, EXITED, MINE, remove_asked=True, lost=True), "grant")
    assert (changes["node"], changes["gpu_ids"], changes["generation"], changes["launch"]) == ("m", ["b"], 2, 2)
    assert changes["checkpoint"]["name"] == "g1-s10"
    assert "migrated_ts" not in changes


def test_a_job_on_cpu_has_spent_its_move_with_the_grant_and_not_before() -> None:
    moved = job(s.ADJUSTING, op=moving(to=[], spends={"migrated_ts": 5.0}), node="n", optional_num_gpus=[0])
    assert next_step(world(moved, seen(), [])) == Stop(2)
    changes = written(world(moved, EXITED, [], remove_asked=True, lost=True), "grant")
    assert (changes["migrated_ts"], changes["node"], changes["gpu_ids"]) == (5.0, "m", [])


GRANTED = job(s.ADJUSTING, "b", op=moving(), node="m", generation=2, launch=2)


def test_then_the_old_gpus_come_free_and_the_new_launch_goes_on_from_the_checkpoint() -> None:
    changes = written(world(GRANTED, None, MINE), "free")
    assert (changes["state"], changes["job_id"]) == (s.IDLE, None)
    assert isinstance(next_step(world(GRANTED, None, mine("b"))), Launch)
    with_checkpoint = job(s.ADJUSTING, "b", op=moving(), generation=2, launch=2, checkpoint={"name": "g1-s10"})
    assert next_step(world(with_checkpoint, fresh(), mine("b"))) == Start(2, ("b",), "g1-s10")


def test_with_its_first_step_there_the_move_is_counted() -> None:
    changes = written(world(GRANTED, seen(generation=2), mine("b")), "running")
    assert (changes["state"], changes["reshape"], changes["moves"]) == (s.RUNNING, None, 1)


def test_a_new_launch_that_fails_sends_the_job_back_to_the_queue_with_its_checkpoint() -> None:
    changes = written(world(GRANTED, None, mine("b"), launch_asked=True, launch_failure="no disk"), "undo")
    assert (changes["state"], changes["node"], changes["retries"]) == (s.SUBMITTED, None, 1)


YIELDING = job(s.ADJUSTING, "a", op=op("requeue", yields_to=["two"]), run_ts=WALL - 30, ran_s=5.0, message="yields")


def test_who_yields_saves_and_stops_and_is_back_in_the_queue() -> None:
    assert next_step(world(YIELDING, seen(), mine("a"))) == Stop(2)
    waits(world(YIELDING, seen("stopping", generation=2, verb="stop"), mine("a")), "saving")
    changes = written(world(YIELDING, EXITED, mine("a")), "yielded")
    assert (changes["state"], changes["reshape"], changes["gpu_ids"], changes["node"]) == (
        s.SUBMITTED,
        None,
        None,
        None,
    )
    assert (changes["preempts"], changes["yields_to"], changes["message"]) == (1, ["two"], "yields")
    assert (changes["ran_s"], changes["run_ts"]) == (35.0, None), "waiting is not training"
    assert changes["checkpoint"]["name"] == "g1-s10"
    assert "retries" not in changes, "nothing went wrong"


def test_who_yields_and_ends_by_itself_meanwhile_is_completed() -> None:
    ended = seen("exited", generation=1, exit_code=0)
    assert written(world(YIELDING, ended, mine("a")), "completed")["state"] == s.COMPLETED


def test_its_processes_gone_a_job_that_was_to_yield_waits_in_the_queue_all_the_same() -> None:
    assert isinstance(next_step(world(YIELDING, seen(), mine("a"), lost=True)), Remove)
    gone = world(YIELDING, seen(), mine("a"), lost=True, remove_asked=True)
    assert written(gone, "yielded")["preempts"] == 1


AIMS = job(s.ADJUSTING, "a", op=op("finish"), message="0.91 is there")


def test_a_reached_target_stops_the_training_and_its_exit_is_no_failure() -> None:
    assert next_step(world(AIMS, seen(), mine("a"))) == Stop(2)
    changes = written(world(AIMS, EXITED, mine("a")), "completed")
    assert (changes["state"], changes["message"], changes["num_gpus"]) == (s.COMPLETED, "0.91 is there", 0)


def test_a_training_that_did_not_save_at_its_target_says_so() -> None:
    killed = seen("exited", generation=2, verb="stop", stop_asked=True, exit_code=-9)
    assert "it did not save" in written(world(AIMS, killed, mine("a")), "completed")["message"]


@pytest.mark.parametrize("beat", [None, seen()])
def test_a_training_that_was_lost_before_it_had_saved_trains_on_to_its_target(beat: object) -> None:
    gone = world(AIMS, beat, mine("a"), lost=True, remove_asked=True)  # type: ignore[arg-type]
    assert written(gone, "restart")["state"] == s.RESTARTING


def test_a_training_that_crashed_before_it_was_stopped_is_tried_again() -> None:
    crashed = seen("exited", generation=1, exit_code=1)
    assert written(world(AIMS, crashed, mine("a")), "restart")["retries"] == 1
