"""What happens next when training ends, is lost, or is cancelled, and until nothing is left of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from coordinator.config import Config
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.reconcile.actions import RequestLaunch, RequestRemoval, StartTrainer, StopTrainer
from coordinator.reconcile.lifecycle import next_step
from sidecar.protocol import Checkpoint, Heartbeat, Progress
from tests.fakes.world import SHORT
from tests.unit.coordinator.situations import (
    BOOKED,
    EXITED,
    RELAUNCH,
    WALL,
    fresh,
    gpu,
    job,
    mine,
    newcomer,
    reshape_of,
    seen,
    start_of,
    victim,
    waits,
    world,
    written,
)

# how training ends


def running(**more: object) -> JobRecord:
    return job(s.RUNNING, "a", "b", **more)


def exited(code: int, **more: object) -> Heartbeat:
    return seen("exited", exit_code=code, exit_at=60.0, **more)


def test_exit_0_is_completed() -> None:
    changes = written(world(running(), exited(0), mine("a", "b")), "completed")
    assert (changes["message"], changes["finish_ts"], changes["num_gpus"]) == ("completed", WALL, 0)


def test_exit_0_before_its_length_is_completed_and_says_so() -> None:
    changes = written(world(running(iterations=100), exited(0), mine("a", "b")), "completed")
    assert changes["message"] == "ended by itself after 10 of 100 iterations"


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({}, "completed; its target was never measured: the training printed no measure, not val_acc"),
        ({"value": 0.5, "value_name": "loss"}, "completed; its target was never measured: the training printed loss,"),
        ({"value": 0.5, "value_name": "val_acc"}, "completed; its target was not reached: val_acc is 0.5, not 0.9"),
        ({"value": 0.95, "value_name": "val_acc"}, "completed"),
    ],
)
def test_exit_0_of_a_job_with_a_target_says_what_became_of_that(known: dict[str, object], told: str) -> None:
    aims = running(target={"value": 0.9, "name": "val_acc"}, **known)
    message = written(world(aims, exited(0), mine("a", "b")), "completed")["message"]
    assert message == told if told == "completed" else message.startswith(told)


def test_exit_0_after_a_stop_is_completed_only_if_its_length_is_reached() -> None:
    beat = exited(0, stop_asked=True)
    assert written(world(running(iterations=100), beat, mine("a", "b")), "restart")
    assert written(world(running(iterations=10), beat, mine("a", "b")), "completed")


@pytest.mark.parametrize(("code", "saved"), [(0, True), (143, True), (-15, True), (7, True), (1, False), (-9, False)])
def test_a_trainer_that_did_not_save_when_it_was_stopped_is_told_and_goes_on(code: int, saved: bool) -> None:
    of = job(s.ADJUSTING, "a", "b", op=reshape_of(("a", "b"), ("a",)), iterations=100, reshape_exit_codes=[143, -15, 7])
    beat = seen("exited", 2, "stop", exit_code=code, exit_at=60.0, stop_asked=True, output_tail="No space left")
    loss = written(world(of, beat, mine("a", "b")), "grant")["reshape"].get("loss", "")
    assert (loss == "") is saved
    assert saved or ("did not save" in loss and "No space left" in loss)


@pytest.mark.parametrize(("retries", "pause"), [(0, 1.0), (1, 2.0), (2, 4.0)])
def test_a_crash_is_tried_again_after_a_pause_that_doubles(retries: int, pause: float) -> None:
    beat = exited(1, output_tail="Traceback\n\nValueError: bad batch\n")
    changes = written(world(running(retries=retries), beat, mine("a", "b")), "restart")
    assert (changes["state"], changes["retries"], changes["retry_ts"]) == (s.RESTARTING, retries + 1, WALL + pause)
    assert "exit code 1: ValueError: bad batch" in str(changes["message"])


def test_after_its_last_try_a_crashing_job_has_failed_with_the_last_line_of_its_output() -> None:
    beat = exited(-9, output_tail="killed by the kernel\n")
    changes = written(world(running(retries=3), beat, mine("a", "b")), "failed")
    sentence = "the training process was killed by signal 9: killed by the kernel; gave up after 4 tries"
    assert changes["message"] == sentence


def test_the_crash_of_a_trainer_that_ran_for_long_is_the_first_again() -> None:
    beat = exited(1, spawn_at=0.0)
    long = seen("exited", exit_code=1, spawn_at=50.0, exit_at=50.0 + 601)
    assert written(world(running(retries=3), beat, mine("a", "b")), "failed")
    assert written(world(running(retries=3), long, mine("a", "b")), "restart")["retries"] == 1


# what does not start again


EXISTS = "Traceback\n\nFileExistsError: [Errno 17] File exists: 'out'\n"
FAILS_AGAIN = seen("exited", 2, exit_code=1, exit_at=60.0, output_tail=EXISTS)  # its newest checkpoint is of before
WHY_HELD = "the training process ended with exit code 1: FileExistsError: [Errno 17] File exists: 'out'"


def started_again(**more: object) -> JobRecord:
    """Trained before a reshape, and has now been started as often as it may be."""
    restart = {"kind": "restart", "from": ["a", "b"], "to": ["a", "b"], "generation": 2}
    known = {"generation": 2, "retries": 3, "iters_done": 10, "stopped_by_us": 2}
    return job(s.RESTARTING, "a", "b", op=restart, **{**known, **more})


def test_what_trained_before_and_does_not_start_again_is_held_without_gpus_and_with_its_checkpoint() -> None:
    changes = written(world(started_again(), FAILS_AGAIN, mine("a", "b")), "hold")
    assert (changes["state"], changes["suspended"], changes["held"]) == (s.SUBMITTED, True, WHY_HELD)
    assert (changes["gpu_ids"], changes["retries"]) == (None, 0)
    assert "stopped_by_us" not in changes, "a loss that shows later is still that of the reshape"
    assert changes["checkpoint"]["name"] == "g1-s10"
    assert changes["message"] == (
        f"one is held: {WHY_HELD}. Mend this, then `reshape resume one` starts it from what it has saved; "
        "`reshape cancel one` ends it."
    )


def test_a_start_is_tried_again_before_it_is_given_up() -> None:
    assert written(world(started_again(retries=2), FAILS_AGAIN, mine("a", "b")), "restart")["retries"] == 3


def test_one_that_never_makes_a_step_is_not_tried_for_ever_because_it_lives_long() -> None:
    slow = replace_shim(FAILS_AGAIN, spawn_at=50.0, exit_at=50.0 + 601)
    assert written(world(started_again(), slow, mine("a", "b")), "hold")


@pytest.mark.parametrize("code", [126, 127])
def test_a_program_that_is_gone_holds_the_job_at_once(code: int) -> None:
    gone = replace_shim(FAILS_AGAIN, exit_code=code, exit_note="cannot start 'python3.12' (No such file)")
    assert written(world(started_again(retries=0), gone, mine("a", "b")), "hold")["held"].startswith("cannot start")


def test_what_has_made_a_step_since_it_was_started_again_fails_as_any_other() -> None:
    stepped = msgspec.structs.replace(FAILS_AGAIN, progress=Progress(11, first_step_at=51.0))
    saved = msgspec.structs.replace(FAILS_AGAIN, checkpoint=Checkpoint("g2-s20", 20, 2))
    for beat in (stepped, saved):
        assert "gave up after 4 tries" in written(world(started_again(), beat, mine("a", "b")), "failed")["message"]


def test_what_never_trained_fails_and_is_not_held() -> None:
    beat = msgspec.structs.replace(FAILS_AGAIN, checkpoint=None)
    assert written(world(started_again(iters_done=0), beat, mine("a", "b")), "failed")


def test_what_has_not_shown_that_it_resumes_fails_and_is_not_held() -> None:
    beat = msgspec.structs.replace(FAILS_AGAIN, checkpoint=None)
    assert written(world(started_again(elastic=None), beat, mine("a", "b")), "failed")


LEFT = msgspec.structs.replace(
    seen("exited", 2, exit_code=0, exit_at=60.0, output_tail="another one runs already\n"),
    progress=Progress(10, total_iterations=100),
)


def test_a_command_that_ends_before_it_comes_to_its_unfinished_training_is_held_and_not_completed() -> None:
    """It finds its own lock, which a kill has left, and exits with 0."""
    known: dict[str, Any] = {"elastic": None, "resumes": "hook"}
    assert written(world(started_again(retries=0, **known), LEFT, mine("a", "b")), "restart")["retries"] == 1
    held = written(world(started_again(**known), LEFT, mine("a", "b")), "hold")["held"]
    assert held == "the training process ended with exit code 0: another one runs already"


@pytest.mark.parametrize(
    ("known", "changes"),
    [
        ({"resumes": "checkpoint"}, {}),
        ({}, {"hook": True}),
        ({}, {"progress": Progress(100, total_iterations=100)}),
        ({}, {"progress": Progress(10)}),
        ({}, {"progress": Progress(11, first_step_at=51.0, total_iterations=100)}),
        ({}, {"checkpoint": Checkpoint("g2-s10", 10, 2)}),
    ],
    ids=["saves by itself", "resumed", "done", "of unknown length", "stepped", "saved once more"],
)
def test_a_command_that_has_resumed_its_training_or_has_none_left_is_completed(
    known: dict[str, Any], changes: dict[str, Any]
) -> None:
    of = started_again(**{"elastic": None, "resumes": "hook", **known})
    assert written(world(of, msgspec.structs.replace(LEFT, **changes), mine("a", "b")), "completed")


def test_a_launch_that_fails_again_and_again_holds_a_job_that_has_trained() -> None:
    again = job(s.INITIALIZING, "a", op=start_of("a", generation=2), up=None, launch=2, retries=3, iters_done=10)
    changes = written(world(again, None, mine("a"), launch_failure="no such image"), "hold")
    assert (changes["held"], changes["suspended"]) == ("could not be launched: no such image", True)


def test_checkpoints_in_its_pod_are_kept_with_the_pod_and_its_gpus_until_it_is_resumed() -> None:
    in_pods = replace(SHORT, checkpoints_last=False)
    of = started_again()
    changes = written(world(of, FAILS_AGAIN, mine("a", "b"), config=in_pods), "hold")
    assert (changes["state"], changes.get("suspended"), changes["held"]) == (s.RESTARTING, None, WHY_HELD)
    assert "it keeps its 2 GPUs, as its checkpoints lie in its pod. Mend this, then `reshape resume one`" in str(
        changes["message"]
    )
    held = JobRecord({**of.doc, **changes})
    waits(world(held, FAILS_AGAIN, mine("a", "b"), config=in_pods), "held")
    resumed = JobRecord({**held.doc, "held": None})
    assert written(world(resumed, FAILS_AGAIN, mine("a", "b"), config=in_pods), "grant")["generation"] == 3


def replace_shim(beat: Heartbeat, **more: object) -> Heartbeat:
    return msgspec.structs.replace(beat, shim=msgspec.structs.replace(beat.shim, **more))


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_cannot_be_started_fails_at_once(code: int) -> None:
    note = "cannot start 'pyhton' (No such file); correct the job's command"
    changes = written(world(running(), exited(code, exit_note=note), mine("a", "b")), "failed")
    assert changes["message"] == note


def test_a_trainer_that_was_fenced_is_no_crash() -> None:
    beat = exited(143, stop_asked=True, fenced=True)
    changes = written(world(running(retries=3), beat, mine("a", "b")), "restart")
    assert (changes["retries"], changes["retry_ts"]) == (3, WALL)
    assert "lease" in str(changes["message"])


def test_a_trainer_that_somebody_else_stopped_is_started_again_above_that_generation() -> None:
    beat = seen("exited", generation=5, verb="stop", stop_asked=True, exit_code=143)
    changes = written(world(running(), beat, mine("a", "b")), "restart")
    assert changes["reshape"]["generation"] == 6
    beaten = reshape_of(("a", "b"), ("a",))
    adjusting = job(s.ADJUSTING, "a", "b", op=beaten)
    assert written(world(adjusting, beat, mine("a", "b")), "renumber")["reshape"] == {**beaten, "generation": 6}


def test_a_restart_uses_the_same_gpus_without_one_that_is_lost_if_that_count_is_allowed() -> None:
    gpus = [*mine("a"), gpu("b", "other", "other")]
    beat = exited(1)
    assert written(world(running(), beat, gpus), "restart")["reshape"]["to"] == ["a"]
    picky = running(optional_num_gpus=[2])
    assert written(world(picky, beat, gpus), "undo")["state"] == s.SUBMITTED


def restarting(**more: object) -> JobRecord:
    op = {"kind": "restart", "from": ["a", "b"], "to": ["a", "b"], "generation": 2}
    return job(s.RESTARTING, "a", "b", op=op, **more)


def test_a_restart_waits_out_its_pause_and_then_starts_without_another_stop() -> None:
    crashed = exited(1)
    assert waits(world(restarting(retry_ts=WALL + 3, retries=8), crashed, mine("a", "b"))).seconds == 3
    assert written(world(restarting(), crashed, mine("a", "b")), "grant")["generation"] == 2
    day = restarting(retry_ts=WALL + 86_400, retries=1)  # the clock was set back by a day, and it holds its GPUs
    assert written(world(day, crashed, mine("a", "b")), "grant")["generation"] == 2
    hour = restarting(retry_ts=WALL + 3_000, retries=1)
    assert waits(world(hour, crashed, mine("a", "b"))).seconds == SHORT.retry_s
    assert written(world(hour, crashed, mine("a", "b"), waited_s=SHORT.retry_s), "grant")["generation"] == 2
    again = job(s.RESTARTING, "a", "b", op=restarting().operation.doc, generation=2)
    assert next_step(world(again, crashed, mine("a", "b"))) == StartTrainer(2, ("a", "b"), "g1-s10")


# launches that are lost, and relaunching


def test_a_lost_launch_is_launched_again_under_the_next_number() -> None:
    changes = written(world(running(), seen(), mine("a", "b"), lost=True), "restart")
    assert (changes["state"], changes["retries"]) == (s.RESTARTING, 0)
    assert isinstance(next_step(world(restarting(), seen(), mine("a", "b"), lost=True)), RequestRemoval), (
        "what it left behind"
    )
    waits(world(restarting(), seen(), mine("a", "b"), remove_asked=True), "being removed")
    granted = written(world(restarting(), seen(), mine("a", "b"), lost=True, remove_asked=True), "grant")
    assert (granted["generation"], granted["launch"]) == (2, 2)
    new = job(s.RESTARTING, "a", "b", op=restarting().operation.doc, generation=2, launch=2)
    assert isinstance(next_step(world(new, None, mine("a", "b"))), RequestLaunch)


def test_a_job_that_has_not_been_heard_of_since_the_coordinator_began_is_left_alone() -> None:
    waits(world(running(), None, mine("a", "b")), "not heard")
    waits(world(victim(), None, BOOKED, newcomer(s.INITIALIZED)), "not reported")


def test_a_shim_that_began_afresh_is_told_its_generation_and_gpus() -> None:
    assert next_step(world(job(s.RUNNING, "a"), fresh(), mine("a"))) == StartTrainer(1, ("a",), None)


def test_relaunching_removes_the_launch_after_the_stop_and_grants_the_next_one() -> None:
    op = reshape_of(("a", "b"), ("a",), how="relaunch")
    shrinking = job(s.ADJUSTING, "a", "b", op=op)
    gpus = mine("a", "b")
    assert next_step(world(shrinking, seen(), gpus, config=RELAUNCH)) == StopTrainer(2)
    assert isinstance(next_step(world(shrinking, EXITED, gpus, config=RELAUNCH)), RequestRemoval)
    waits(world(shrinking, EXITED, gpus, config=RELAUNCH, remove_asked=True), "being removed")
    changes = written(world(shrinking, EXITED, gpus, config=RELAUNCH, remove_asked=True, lost=True), "grant")
    assert (changes["launch"], changes["gpu_ids"]) == (2, ["a"])


def test_a_victim_whose_removal_was_asked_for_is_not_undone() -> None:
    renumbered = job(s.ADJUSTING, "c", "d", op={**victim().operation.doc, "generation": 9, "how": "relaunch"})
    waits(world(renumbered, EXITED, mine("c", "d"), remove_asked=True), "being removed")


# cancelling


STATES = {
    "in the queue": (job(s.SUBMITTED, generation=0, launch=0, cancel=True), None, []),
    "coming up": (newcomer(cancel=True), None, BOOKED),
    "waiting for its GPUs": (newcomer(s.INITIALIZED, cancel=True), fresh("two"), BOOKED),
    "stopped for a reshape": (victim(cancel=True), EXITED, BOOKED),
    "after a crash": (restarting(cancel=True), exited(1), mine("a", "b")),
    "launched again and not up yet": (restarting(cancel=True, generation=2, launch=2), None, mine("a", "b")),
    "lost": (running(cancel=True), None, mine("a", "b")),
}


@pytest.mark.parametrize("name", STATES)
def test_a_job_that_does_not_train_is_cancelled_at_once(name: str) -> None:
    of, beat, gpus = STATES[name]
    changes = written(world(of, beat, gpus, lost=name == "lost"), "cancelled")
    assert (changes["state"], changes["num_gpus"], changes["reshape"]) == (s.CANCELLED, 0, None)


@pytest.mark.parametrize("of", [running(cancel=True), victim(cancel=True), restarting(cancel=True)])
def test_a_job_that_trains_is_stopped_first_above_every_generation(of: JobRecord) -> None:
    step = next_step(world(of, seen(), BOOKED))
    assert step == StopTrainer(2 if of.operation is None else 3, wait=False)
    waits(world(of, seen("stopping", generation=3, verb="stop"), BOOKED), "saving")


def test_one_that_is_waited_for_until_it_has_saved_is_waited_for_no_longer_once_it_is_cancelled() -> None:
    asked = seen("stopping", generation=2, verb="stop", patient=True)
    waits(world(victim(), asked, BOOKED), "saving")
    assert next_step(world(victim(cancel=True), asked, BOOKED)) == StopTrainer(3, wait=False)
    hurried = seen("stopping", generation=3, verb="stop", patient=False)
    waits(world(victim(cancel=True), hurried, BOOKED), "saving")


def test_a_cancelled_job_is_stopped_though_a_call_of_the_driver_that_freezes_it_hangs() -> None:
    calls = seen("stopping", generation=1, verb="start", freezes=True)
    assert next_step(world(running(cancel=True), calls, BOOKED)) == StopTrainer(2, wait=False)
    stopped = seen("stopping", generation=2, verb="stop", freezes=True, stop_at=1.0)
    waits(world(running(cancel=True), stopped, BOOKED), "saving")


def test_only_an_operator_who_agreed_to_the_loss_does_not_wait_for_a_save() -> None:
    for agreed in (False, True):
        op = reshape_of(("a", "b"), ("a",), forced=agreed)
        step = next_step(world(job(s.ADJUSTING, "a", "b", op=op), seen(), mine("a", "b")))
        assert step == StopTrainer(2, in_place=True, wait=not agreed, gpu_ids=("a",))


@pytest.mark.parametrize("resumes", [True, None])
def test_one_whose_gpu_somebody_else_uses_waits_anew_and_that_is_no_try_of_it(resumes: bool | None) -> None:
    taken = seen("exited", spawn_at=None, taken="GPU a is used by process 7 (python) of bob")
    of = job(s.ADJUSTING, "a", op=start_of("a"), elastic=resumes)
    changes = written(world(of, taken, mine("a")), "undo")
    assert (changes["state"], changes["message"]) == (s.SUBMITTED, taken.shim.taken)
    assert changes["retries"] == of.retries and changes["retry_ts"] > WALL


def test_a_running_job_of_which_nothing_was_heard_yet_is_not_called_cancelled() -> None:
    waits(world(running(cancel=True), None, mine("a", "b")), "not reported")


# an ended job


ENDED = job(s.COMPLETED)


def test_an_ended_job_frees_its_gpus_then_its_launch_then_is_closed() -> None:
    beat = exited(0)
    freed = {"state": s.IDLE, "job_id": None, "worker_id": None, "held_by": None, "unleased": None}
    assert written(world(ENDED, beat, mine("a")), "free") == freed
    assert isinstance(next_step(world(ENDED, beat, [])), RequestRemoval)
    waits(world(ENDED, beat, [], remove_asked=True), "being removed")
    assert written(world(ENDED, beat, [], remove_asked=True, lost=True), "put down")["down"] == 1
    assert written(world(job(s.COMPLETED, down=1), beat, [], lost=True), "close") == {"closed": True}
    assert waits(world(job(s.COMPLETED, closed=True), None, [])).seconds is None


def test_no_gpu_is_freed_while_a_trainer_may_be_using_it() -> None:
    assert isinstance(next_step(world(ENDED, seen(), mine("a"))), StopTrainer)
    assert isinstance(next_step(world(ENDED, None, mine("a"))), RequestRemoval), "whether it lives or not, it is to go"
    waits(world(ENDED, None, mine("a"), remove_asked=True), "being removed")
    assert written(world(ENDED, None, mine("a"), lost=True), "free")


def test_no_gpu_is_freed_while_a_start_that_was_not_answered_may_still_be_obeyed() -> None:
    granted = job(s.CANCELLED, generation=2)
    stopped = seen("exited", generation=2, verb="stop", stop_asked=True, exit_code=143)
    assert next_step(world(granted, stopped, mine("a"))) == StopTrainer(3)
    fenced = seen("exited", generation=3, verb="stop", stop_asked=True, exit_code=143)
    assert written(world(granted, fenced, mine("a")), "free")


def test_a_trainer_of_an_earlier_start_that_was_not_answered_is_stopped_before_the_next_start() -> None:
    granted = job(s.RESTARTING, "a", "b", op=restarting().operation.doc, generation=2)
    assert next_step(world(granted, seen(generation=1), mine("a", "b"))) == StopTrainer(2)
    waits(world(granted, seen("stopping", generation=1), mine("a", "b")), "saving")


def test_a_faulty_gpu_stays_faulty_when_it_is_freed() -> None:
    broken = gpu("a", "one", "one", state=s.FAULTY)
    assert written(world(ENDED, exited(0), [broken]), "free")["state"] == s.FAULTY


# a launch that somebody ends, and a node that is not heard of


def evicted(**more: object) -> Heartbeat:
    return seen("exited", exit_code=143, stop_asked=True, ending=True, **more)


def test_a_launch_that_is_ending_is_told_nothing_and_its_job_waits_for_its_end() -> None:
    waits(world(running(), evicted(), mine("a", "b")), "its launch is ending")
    restarting = job(s.RESTARTING, "a", "b", op={"kind": "restart", "to": ["a", "b"], "generation": 1})
    waits(world(restarting, seen("none", generation=0, ending=True), mine("a", "b")), "its launch is ending")


def test_a_launch_that_ends_as_its_trainer_completes_is_completed() -> None:
    written(world(running(), seen("exited", exit_code=0, ending=True), mine("a", "b")), "completed")


@pytest.mark.parametrize("state", [s.RUNNING, s.RESTARTING])
def test_a_launch_that_was_ended_from_outside_costs_no_try(state: str) -> None:
    op = None if state == s.RUNNING else {"kind": "restart", "to": ["a", "b"], "generation": 1}
    changes = written(world(job(state, "a", "b", op=op, retries=2), evicted(), mine("a", "b"), lost=True), "restart")
    assert changes["retries"] == 2


def test_a_newcomer_whose_launch_was_ended_from_outside_waits_again_without_a_lost_try() -> None:
    of, beat = newcomer(retries=2), seen("none", 0, name="two", ending=True)
    assert written(world(of, beat, BOOKED, victim(), lost=True), "undo")["retries"] == 2


def test_a_job_whose_node_is_lost_goes_back_into_the_queue_and_not_to_that_node() -> None:
    changes = written(world(running(retries=1), seen(), mine("a", "b"), lost=True, node_unavailable=True), "undo")
    assert (changes["state"], changes["node"], changes["retries"]) == (s.SUBMITTED, None, 1)


@pytest.mark.parametrize("kind", ["restart", "start"])
def test_nothing_is_launched_on_a_node_that_is_not_heard_of(kind: str) -> None:
    op = {"kind": kind, "to": ["a", "b"], "generation": 1}
    changes = written(world(job(s.RESTARTING, "a", "b", op=op), None, mine("a", "b"), node_unavailable=True), "undo")
    assert (changes["state"], changes["retries"]) == (s.SUBMITTED, 0)


# checkpoints that go with their pod


POD = replace(SHORT, checkpoints_last=False)
SAVED = {"name": "g1-s10", "step": 10, "generation": 1, "launch": 1}


def relaunched(**more: object) -> JobRecord:
    op = {"kind": "restart", "to": ["a", "b"], "generation": 2}
    return job(s.RESTARTING, "a", "b", op=op, generation=2, launch=2, checkpoint=SAVED, iters_done=10, **more)


def test_a_job_whose_checkpoints_went_with_its_pod_starts_from_the_beginning_and_says_so() -> None:
    w = world(relaunched(), seen("none", 0), mine("a", "b"), config=POD)
    assert next_step(w) == StartTrainer(2, ("a", "b"), None)
    changes = written(world(relaunched(), seen(generation=2, steps=3), mine("a", "b"), config=POD), "running")
    assert (changes["checkpoint"], changes["iters_done"]) == (None, 3)
    assert "checkpoint_claim" in changes["message"]


@pytest.mark.parametrize(("config", "more"), [(SHORT, {}), (POD, {"checkpoint_claim": "c"}), (POD, {"launch": 1})])
def test_a_checkpoint_that_outlives_its_pod_or_is_of_this_one_is_gone_on_from(config: Config, more: Any) -> None:
    of = JobRecord({**relaunched().doc, **more})
    assert next_step(world(of, seen("none", 0), mine("a", "b"), config=config)) == StartTrainer(2, ("a", "b"), "g1-s10")
    assert written(world(of, seen(generation=2), mine("a", "b"), config=config), "running")["message"] == "trains"


def test_a_launch_that_finds_no_room_on_its_node_goes_back_to_the_queue_and_loses_no_try() -> None:
    late = {"launch_asked": True, "waited_s": SHORT.init_timeout_s + 1, "unplaced": "Insufficient cpu"}
    changes = written(world(newcomer(), None, BOOKED, victim(), **late), "undo")
    assert (changes["state"], changes["retries"], changes["gpu_ids"]) == (s.SUBMITTED, 0, None)
    assert changes["retry_ts"] > WALL and "Insufficient cpu" in changes["message"]
    assert "Insufficient" not in str(next_step(world(newcomer(), None, BOOKED, victim(), launch_asked=True)))


def test_a_launch_that_fails_for_want_of_room_loses_no_try_either() -> None:
    failed = {"launch_asked": True, "launch_failure": "launch.json cannot be written"}
    changes = written(world(newcomer(), None, BOOKED, victim(), **failed, unplaced="the disk is full"), "undo")
    assert (changes["state"], changes["retries"], changes["gpu_ids"]) == (s.SUBMITTED, 0, None)
    assert changes["retry_ts"] > WALL and "the disk is full" in changes["message"]
    assert written(world(newcomer(), None, BOOKED, victim(), **failed), "undo")["retries"] == 1
