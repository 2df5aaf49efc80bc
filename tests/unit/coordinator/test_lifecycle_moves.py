"""What happens next when a job moves, yields or has reached its target, situation by situation."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from coordinator.model import states as s
from coordinator.model.records import Doc, JobRecord
from coordinator.reconcile.actions import RequestLaunch, RequestRemoval, StartTrainer, StopTrainer
from coordinator.reconcile.lifecycle import next_step
from coordinator.reconcile.observed_state import ComingLaunch
from sidecar.protocol import Checkpoint
from tests.fakes.world import SHORT
from tests.unit.coordinator.situations import EXITED, WALL, fresh, gpu, job, mine, seen, waits, world, written


def op(kind: str, *to: str, **more: object) -> Doc:
    return {"kind": kind, "from": ["a"], "to": list(to), "generation": 2, "how": "in place", **more}


def moving(**more: object) -> Doc:
    return op("move", "b", node="m", from_node="n", how="relaunch", **more)


MOVING = job(s.ADJUSTING, "a", op=moving(launch=2, from_launch=1), node="n", newest_launch=2)
MINE = mine("a", "b")
UP = ComingLaunch(up=True, asked=True)


def test_a_move_first_takes_the_gpus_where_it_goes() -> None:
    changes = written(world(MOVING, seen(), [*mine("a"), gpu("b")]), "claim")
    assert (changes["state"], changes["job_id"], changes["held_by"]) == (s.IN_USE, "one", "one")


def test_a_move_whose_gpus_somebody_got_first_stays_where_it_is_undisturbed() -> None:
    changes = written(world(MOVING, seen(), [*mine("a"), gpu("b", "two", "two")]), "undo")
    assert (changes["state"], changes["reshape"]) == (s.RUNNING, None)
    assert changes["message"] == "stays on n: GPU b was given to job two meanwhile"


def test_then_its_next_launch_comes_up_while_it_trains_on() -> None:
    assert next_step(world(MOVING, seen(), MINE, newcomer=ComingLaunch())) == RequestLaunch(newcomer=True)
    waits(world(MOVING, seen(), MINE, newcomer=ComingLaunch(asked=True)), "its launch on node m comes up")
    coming = MOVING.coming
    assert coming is not None
    assert (coming.launch, coming.node, coming.gpu_ids, coming.generation) == (2, "m", ("b",), 1)


def test_one_that_was_not_heard_since_the_coordinator_began_may_have_stopped_already() -> None:
    waits(world(MOVING, None, MINE, newcomer=ComingLaunch(failure="no disk")), "has not reported yet")


FAILS = {
    "its launch on node m failed: no disk": ComingLaunch(asked=True, failure="no disk"),
    "its launch on node m ended before it was needed": ComingLaunch(up=True, asked=True, lost=True),
    "node m does not answer, or takes no new pods": ComingLaunch(up=True, asked=True, node_unavailable=True),
}


@pytest.mark.parametrize("why", FAILS)
def test_a_next_launch_that_fails_is_removed_first_and_the_job_trains_on_where_it_is(why: str) -> None:
    newcomer = FAILS[why]
    assert next_step(world(MOVING, seen(), MINE, newcomer=newcomer)) == RequestRemoval(2, why)
    removed = replace(newcomer, failure="this launch has been removed already", removed=why)
    changes = written(world(MOVING, seen(), MINE, newcomer=removed), "undo")
    assert (changes["state"], changes["reshape"], changes["message"]) == (s.RUNNING, None, f"stays on n: {why}")
    assert "retries" not in changes, "it has done nothing wrong"
    assert changes["retry_ts"] == WALL + SHORT.init_timeout_s / 10, "not again at once"
    after = JobRecord({**MOVING.doc, **changes})
    assert (after.launch, after.next_launch) == (1, 3), "a launch that was removed never comes up again"


def test_one_that_does_not_come_up_says_what_keeps_it() -> None:
    late = world(MOVING, seen(), MINE, newcomer=ComingLaunch(asked=True, unplaced="there is no room"), waited_s=99.0)
    assert next_step(late) == RequestRemoval(2, "its launch on node m did not come up: there is no room")


@pytest.mark.parametrize("how", [{"cancel": True}, {}])
def test_a_job_that_is_cancelled_or_ends_meanwhile_takes_its_next_launch_along(how: Doc) -> None:
    moving_on = JobRecord({**MOVING.doc, **how})
    ended = seen("exited", generation=1, exit_code=0)
    step = next_step(world(moving_on, ended, MINE, newcomer=UP))
    assert isinstance(step, RequestRemoval)
    assert step.launch == 2
    after = world(moving_on, ended, MINE, newcomer=replace(UP, removed=step.why))
    assert written(after, "cancelled" if how else "completed")["reshape"] is None


def test_once_that_is_up_it_saves_and_stops_and_is_granted_the_other_node_and_launch() -> None:
    assert next_step(world(MOVING, seen(), MINE, newcomer=UP)) == StopTrainer(2)
    waits(world(MOVING, seen("stopping", generation=2, verb="stop"), MINE, newcomer=UP), "saving")
    changes = written(world(MOVING, EXITED, MINE, newcomer=UP), "grant")
    assert (changes["node"], changes["gpu_ids"], changes["generation"], changes["launch"]) == ("m", ["b"], 2, 2)
    assert changes["checkpoint"]["name"] == "g1-s10"
    assert "migrated_ts" not in changes


def test_once_it_has_stopped_the_move_rolls_forward_whatever_became_of_its_next_launch() -> None:
    changes = written(world(MOVING, EXITED, MINE, newcomer=ComingLaunch(asked=True, failure="no disk")), "grant")
    assert changes["launch"] == 2
    changes = written(world(MOVING, EXITED, MINE, newcomer=replace(UP, removed="so")), "grant")
    assert changes["launch"] == 3


def test_a_job_that_is_lost_meanwhile_goes_on_at_its_next_launch() -> None:
    lost = world(MOVING, seen(), MINE, newcomer=ComingLaunch(asked=True), lost=True)
    assert next_step(lost) == RequestRemoval()
    assert written(replace(lost, remove_asked=True), "grant")["launch"] == 2


def test_a_job_on_cpu_has_spent_its_move_with_the_grant_and_not_before() -> None:
    spends = moving(to=[], spends={"migrated_ts": 5.0}, launch=2, from_launch=1)
    moved = job(s.ADJUSTING, op=spends, node="n", optional_num_gpus=[0])
    assert next_step(world(moved, seen(), [], newcomer=UP)) == StopTrainer(2)
    changes = written(world(moved, EXITED, [], newcomer=UP), "grant")
    assert (changes["migrated_ts"], changes["node"], changes["gpu_ids"]) == (5.0, "m", [])


def granted(**stopped: object) -> JobRecord:
    op = moving(launch=2, from_launch=1, stopped=stopped)
    saved = {"name": "g1-s10", "step": 10, "generation": 1, "launch": 1}
    return job(s.ADJUSTING, "b", op=op, node="m", generation=2, launch=2, newest_launch=2, checkpoint=saved)


GRANTED = granted(exit_at=61.0)


def test_then_the_old_gpus_come_free_and_the_old_launch_goes() -> None:
    changes = written(world(GRANTED, fresh(), MINE), "free")
    assert (changes["state"], changes["job_id"]) == (s.IDLE, None)
    assert next_step(world(GRANTED, fresh(), mine("b"))) == RequestRemoval(1)
    assert isinstance(next_step(world(GRANTED, fresh(), mine("b"), old_launch_removed=True)), StartTrainer)


def test_it_goes_on_from_what_it_saved_last_though_its_next_sidecar_had_looked_before_that() -> None:
    looked_early = msgspec.structs.replace(fresh(), checkpoint=Checkpoint("g1-s4", 4, 1))
    left = world(GRANTED, looked_early, mine("b"), old_launch_removed=True)
    assert next_step(left) == StartTrainer(2, ("b",), "g1-s10")
    silent_pods = world(granted(exit_at=None), looked_early, mine("b"), old_launch_removed=True)
    assert next_step(silent_pods) == StartTrainer(2, ("b",), None), (
        "it may have saved while nobody heard it: the newest there is"
    )


# the pod of a user's Volcano Job: made again once it is gone

ALONE = job(s.ADJUSTING, "a", op=moving(), node="n")


def test_where_one_pod_must_go_before_the_next_its_launch_is_removed_once_it_has_stopped() -> None:
    assert next_step(world(ALONE, seen(), MINE)) == StopTrainer(2)
    assert next_step(world(ALONE, EXITED, MINE)) == RequestRemoval()
    waits(world(ALONE, EXITED, MINE, remove_asked=True), "being removed")
    changes = written(world(ALONE, EXITED, MINE, remove_asked=True, lost=True), "grant")
    assert (changes["node"], changes["gpu_ids"], changes["generation"], changes["launch"]) == ("m", ["b"], 2, 2)


def test_and_the_next_one_is_launched_after_that() -> None:
    moved = job(s.ADJUSTING, "b", op=moving(), node="m", generation=2, launch=2, checkpoint={"name": "g1-s10"})
    assert next_step(world(moved, None, mine("b"))) == RequestLaunch()
    assert next_step(world(moved, fresh(), mine("b"))) == StartTrainer(2, ("b",), "g1-s10")


def test_with_its_first_step_there_the_move_is_counted() -> None:
    changes = written(world(GRANTED, seen(generation=2), mine("b"), old_launch_removed=True), "running")
    assert (changes["state"], changes["reshape"], changes["moves"]) == (s.RUNNING, None, 1)


def test_a_new_launch_that_fails_sends_the_job_back_to_the_queue_with_its_checkpoint() -> None:
    failed = world(GRANTED, None, mine("b"), launch_asked=True, launch_failure="no disk", old_launch_removed=True)
    changes = written(failed, "undo")
    assert (changes["state"], changes["node"], changes["retries"]) == (s.SUBMITTED, None, 1)


YIELDING = job(s.ADJUSTING, "a", op=op("requeue", yields_to=["two"]), run_ts=WALL - 30, ran_s=5.0, message="yields")


def test_who_yields_saves_and_stops_and_is_back_in_the_queue() -> None:
    assert next_step(world(YIELDING, seen(), mine("a"))) == StopTrainer(2)
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
    assert isinstance(next_step(world(YIELDING, seen(), mine("a"), lost=True)), RequestRemoval)
    gone = world(YIELDING, seen(), mine("a"), lost=True, remove_asked=True)
    assert written(gone, "yielded")["preempts"] == 1


AIMS = job(s.ADJUSTING, "a", op=op("finish"), message="0.91 is there")


def test_a_reached_target_stops_the_training_and_its_exit_is_no_failure() -> None:
    assert next_step(world(AIMS, seen(), mine("a"))) == StopTrainer(2)
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
