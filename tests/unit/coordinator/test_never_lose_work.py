"""Nobody's work is lost unasked: what may be stopped, what is started again, and what is told of a loss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from coordinator.config import Config
from coordinator.model import resumption
from coordinator.model import states as s
from coordinator.model.records import Doc, JobRecord
from coordinator.reconcile.actions import RequestRemoval, StopTrainer, Wait
from coordinator.reconcile.lifecycle import next_step
from coordinator.reconcile.transitions import grant_fields
from coordinator.scheduling.intake import acceptance_fields, problems
from sidecar.protocol import Checkpoint, Heartbeat, Lost
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World
from tests.unit.coordinator.situations import gpu, job, mine, reshape_of, seen, start_of, world, written

GOOD = {"_id": "j", "state": "submitted", "optional_num_gpus": [1, 2], "command": ["python", "t.py"]}
SAVED = Checkpoint(name="g1-s10", step=10, generation=1)


def plain(state: str = s.RUNNING, *gpus: str, **more: Any) -> JobRecord:
    """A job that has shown nothing."""
    return job(state, *gpus, **{"elastic": None, **more})


def told(
    trainer: str = "running", shim: Doc | None = None, steps: int = 10, generation: int = 1, **more: Any
) -> Heartbeat:
    """A report without any checkpoint but the one given."""
    beat = seen(trainer, generation=generation, steps=steps, **(shim or {}))
    return msgspec.structs.replace(beat, **{"checkpoint": None, **more})


# what may be stopped


@pytest.mark.parametrize(
    ("doc", "is_rigid"),
    [
        ({}, True),
        ({"elastic": True}, False),
        ({"elastic": False}, True),
        ({"resumes": "hook"}, False),
        ({"resumes": "checkpoint"}, False),
        ({"resumes": "hook", "elastic": False}, True),
        ({"resumes": "nonsense"}, True),
        ({"resumes": "hook", "lost": {"epochs": 2.0, "agreed": False}}, True),
        ({"elastic": True, "lost": {"epochs": 2.0, "agreed": False}}, True),
        ({"resumes": "hook", "lost": {"epochs": 2.0, "agreed": True}}, False),
        ({"resumes": "hook", "withdrawn": "the disk is full"}, True),
        ({"elastic": True, "withdrawn": "the disk is full"}, True),
    ],
)
def test_a_job_is_rigid_until_it_has_shown_or_its_record_says_that_it_resumes(doc: Doc, is_rigid: bool) -> None:
    assert resumption.rigid(plain(**doc)) is is_rigid
    assert bool(resumption.rigidity_reason(plain(**doc))) is is_rigid


def test_a_hook_or_a_verified_checkpoint_is_written_down_once() -> None:
    assert resumption.resumability_shown(plain(), told()) == {}
    assert resumption.resumability_shown(plain(), told(hook=True)) == {"resumes": "hook"}
    assert resumption.resumability_shown(plain(), told(checkpoint=SAVED)) == {"resumes": "checkpoint"}
    assert resumption.resumability_shown(plain(resumes="checkpoint"), told(checkpoint=SAVED)) == {}
    assert resumption.resumability_shown(plain(resumes="checkpoint"), told(hook=True)) == {"resumes": "hook"}
    assert resumption.resumability_shown(plain(resumes="hook"), told(hook=True, checkpoint=SAVED)) == {}


def test_a_hook_that_withdraws_its_word_keeps_the_job_and_one_that_gives_it_again_lets_it_go() -> None:
    known = plain(s.RUNNING, "a", resumes="hook")
    full = told(withdrawn="the checkpoint of step 9 could not be saved: the disk is full")
    changes = resumption.newly_known(known, {0: full}, full)
    assert changes["withdrawn"] == full.withdrawn
    held = JobRecord({**known.doc, **changes})
    assert resumption.newly_known(held, {0: full}, full) == {}, "told once"
    reason = "keeps its 1 GPU as long as a stop would cost work: the checkpoint of step 9 could not be saved"
    assert resumption.rigidity_reason(held).startswith(reason)
    assert "a stop would cost work now" in resumption.refuse_resize(held, "run on 2 GPUs", "--force")
    silent = told()
    assert resumption.newly_known(held, {0: silent}, silent) == {}, "a next process that has said nothing yet"
    again = told(hook=True)
    assert resumption.newly_known(held, {0: again}, again)["withdrawn"] is None


def test_a_stop_that_was_decided_before_the_hook_withdrew_its_word_is_not_sent() -> None:
    op = reshape_of(("a",), ("a", "b"))
    job = plain(s.ADJUSTING, "a", op=op, resumes="hook")
    full = told(withdrawn="the disk is full")
    assert "the disk is full" in written(world(job, full, mine("a", "b")), "undo")["message"]
    assert isinstance(next_step(world(job, told(hook=True), mine("a", "b"))), StopTrainer)


def test_what_is_left_alone_says_why_and_what_to_do() -> None:
    assert resumption.rigidity_reason(plain(s.RUNNING, "a")) == (
        "keeps its 1 GPU until it ends: it has not shown that it can save and resume; use reshape_hooks "
        '(examples/README.md), or submit it with "elastic": true if you know that it resumes'
    )
    assert "2 GPUs" in resumption.rigidity_reason(plain(s.RUNNING, "a", "b", elastic=False))
    assert '"elastic": false' in resumption.rigidity_reason(plain(s.RUNNING, "a", elastic=False))
    lost = {"epochs": 17.0, "iterations": 340, "agreed": False}
    assert "it lost 17 epochs when it was stopped" in resumption.rigidity_reason(plain(s.RUNNING, "a", lost=lost))


def test_intake_takes_elastic_as_true_or_false_only_and_believes_nobody_what_it_has_shown() -> None:
    for fine in (True, False, None):
        assert problems({**GOOD, "elastic": fine}) == []
    (problem,) = problems({**GOOD, "elastic": "yes"})
    assert problem.startswith("elastic must be true") and "'yes'" in problem
    for fine in (True, False, None):
        assert problems({**GOOD, "hooks": fine}) == []
    assert problems({**GOOD, "hooks": "no"}) == ["hooks must be true or false, not 'no'"]
    doc = {**GOOD, "resumes": "hook", "lost": {}, "forced": True}
    kept = {**doc, **acceptance_fields(doc, "u", 0.0)}
    assert (kept["resumes"], kept["lost"], kept["forced"]) == (None, None, None)


# what stopping would cost


def test_unsaved_work_is_all_of_it_nothing_or_what_came_after_the_checkpoint() -> None:
    beat = told(steps=90, checkpoint=SAVED, checkpoint_at=80.0)
    beat.progress.last_step_at = 100.0
    assert resumption.unsaved_s(plain(), beat, 500.0) == 500.0
    assert resumption.unsaved_s(plain(resumes="hook"), beat, 500.0) == 0.0
    assert resumption.unsaved_s(plain(resumes="checkpoint"), beat, 500.0) == 20.0
    assert resumption.unsaved_s(plain(elastic=True), beat, 500.0) == 0.0
    beat.checkpoint_at = None
    assert resumption.unsaved_s(plain(resumes="checkpoint"), beat, 500.0) == 50.0, "since it was started"


# one loss ends it


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        (Lost(340, 0.0, 2), "lost 340 iterations"),
        (Lost(1, 0.0, 2), "lost 1 iteration"),
        (Lost(340, 17.0, 2), "lost 17 epochs"),
        (Lost(0, 1.0, 2), "lost 1 epoch"),
        (Lost(0, 0.25, 2), "lost 0.2 epochs"),
        (Lost(0, 0.0, 2), ""),
    ],
)
def test_a_receipt_says_what_was_lost(lost: Lost, words: str) -> None:
    assert resumption.describe_loss(lost) == words


def test_a_loss_after_a_stop_of_ours_that_nobody_forced_ends_the_reshaping() -> None:
    before = plain(resumes="checkpoint", stopped_by_us=2, generation=2)
    found = resumption.reported_loss(before, told(generation=2, lost=Lost(340, 17.0, 2)))
    assert found["lost"] == {"iterations": 340, "epochs": 17.0, "generation": 2, "agreed": False}
    assert "lost 17 epochs" in found["message"]
    after = JobRecord({**before.doc, **found})
    assert resumption.rigid(after)
    assert resumption.reported_loss(after, told(generation=2, lost=Lost(340, 17.0, 2))) == {}, "told once"
    later = JobRecord({**after.doc, "stopped_by_us": None})
    assert resumption.reported_loss(later, told(generation=3, lost=Lost(1, 0.0, 3))) == {}, (
        "the first one is not forgotten"
    )


def test_a_loss_after_a_crash_or_an_operators_force_ends_nothing() -> None:
    before = plain(resumes="checkpoint", stopped_by_us=None, generation=2)
    found = resumption.reported_loss(before, told(generation=2, lost=Lost(340, 0.0, 2)))
    assert found["lost"]["agreed"] is True
    assert not resumption.rigid(JobRecord({**before.doc, **found}))
    assert resumption.reported_loss(before, told(generation=2, lost=Lost(0, 0.0, 2))) == {}


@pytest.mark.parametrize(("keeps", "protected"), [(3, 2), (2, None), (1, None)])
def test_a_grown_job_that_gave_back_a_part_is_still_protected_only_to_what_it_had_before(
    keeps: int, protected: int | None
) -> None:
    had = ("a", "b", "c", "d")
    job = plain(s.ADJUSTING, *had, op=reshape_of(had, had[:keeps]), grew_from=2)
    stopped = seen("exited", generation=2, verb="stop", exit_code=143, stop_asked=True)
    assert written(world(job, stopped, mine(*had)), "grant")["grew_from"] == protected


@pytest.mark.parametrize(("forced", "by_us"), [(None, 2), (True, None)])
def test_a_grant_writes_down_whose_stop_it_was(forced: bool | None, by_us: int | None) -> None:
    op = reshape_of(("a",), ("a", "b"), forced=forced)
    stopped = seen("exited", generation=2, verb="stop", exit_code=143, stop_asked=True)
    changes = written(world(plain(s.ADJUSTING, "a", op=op, forced=forced), stopped, mine("a", "b")), "grant")
    assert (changes["stopped_by_us"], changes["grew_from"]) == (by_us, 1)
    assert changes.get("forced", "kept") is (None if forced else "kept") or not forced


STOPPED = {"generation": 2, "verb": "stop", "stop_asked": True}
KILLED = {"exit_code": -9, **STOPPED}


@pytest.mark.parametrize(
    ("how", "beat", "more"),
    [
        ("its shim was killed, or its node lost, while it saved", seen("stopping", **STOPPED), {"lost": True}),
        ("it was killed while it saved, as by the kernel for want of memory", seen("exited", **KILLED), {}),
        ("so was the process that a shell had started", seen("exited", **{**KILLED, "exit_code": 137}), {}),
        ("its container was ended", seen("exited", exit_note="its container ended with it", **KILLED), {}),
        ("its lease ended before it had saved", seen("exited", exit_note="had to kill", fenced=True, **KILLED), {}),
        ("it crashed before our stop", seen("exited", exit_code=1), {}),
        ("nothing is known of how it ended", None, {"lost": True}),
    ],
)
def test_a_loss_by_a_kill_before_a_stop_was_answered_is_no_loss_of_ours(how: str, beat: Any, more: Doc) -> None:
    job = plain(s.ADJUSTING, "a", op=reshape_of(("a",), ("a", "b")), resumes="hook")
    reshaped = world(job, beat, mine("a", "b"), remove_asked=bool(more), **more)
    assert written(reshaped, "grant")["stopped_by_us"] is None, how
    leaves = plain(s.ADJUSTING, "a", op=start_of(kind="requeue", generation=2), resumes="hook")
    assert written(world(leaves, beat, mine("a"), remove_asked=bool(more), **more), "yielded")["stopped_by_us"] is None


@pytest.mark.parametrize(
    ("how", "more"),
    [
        ("it saved and ended", {"exit_code": 143}),
        ("it ends by SIGTERM", {"exit_code": -15}),
        ("its save failed", {"exit_code": 1}),
        ("it did not answer in its grace", {"exit_code": -9, "exit_note": "had to kill python (7)"}),
    ],
)
def test_a_training_that_was_let_to_answer_its_stop_is_found_out_if_it_does_not_resume(how: str, more: Doc) -> None:
    job = plain(s.ADJUSTING, "a", op=reshape_of(("a",), ("a", "b")), resumes="hook")
    for lost in ({}, {"lost": True, "remove_asked": True}):
        told_end = world(job, seen("exited", **STOPPED, **more), mine("a", "b"), **lost)
        assert written(told_end, "grant")["stopped_by_us"] == 2, how


def test_a_loss_by_the_end_of_a_machine_is_not_blamed_on_the_stop_before_it() -> None:
    """After a reboot nothing tells any more that the training had gone on well since that stop."""
    job = plain(
        s.ADJUSTING, "a", op=start_of(kind="restart", generation=3), resumes="hook", stopped_by_us=2, generation=2
    )
    assert grant_fields(world(job, None, mine("a"))) == {"stopped_by_us": None}
    silent = world(job, seen("exited", exit_code=1), mine("a"))
    assert grant_fields(silent) == {"stopped_by_us": 3}, "nothing was printed since the stop: it may show later"


def test_a_pod_of_a_gang_that_is_lost_while_it_saves_is_a_fault() -> None:
    saving = seen("stopping", **STOPPED)
    saved = seen("exited", **STOPPED, exit_code=143)
    gang = plain(s.ADJUSTING, "a", "b", op=reshape_of(("a", "b"), ("a",)), resumes="hook", gpus_per_pod=1)
    half = world(gang, saved, mine("a", "b"), pods={0: saved, 1: saving}, lost_pods=frozenset({1}))
    assert half.broken_off
    assert not replace(half, pods={0: saved, 1: saved}).broken_off


# nothing runs twice


def crashed(**more: Any) -> Any:
    return told("exited", {"exit_code": 1, "output_tail": "ValueError: no", "exit_at": 60.0}, **more)


def test_a_command_that_crashed_and_never_showed_that_it_resumes_fails_and_is_not_run_again() -> None:
    message = written(world(plain(s.RUNNING, "a"), crashed(), mine("a")), "failed")["message"]
    assert message == (
        "the training process ended with exit code 1: ValueError: no; "
        "not started again: it is not known what running it twice would do"
    )


@pytest.mark.parametrize(
    ("job_is", "beat", "words"),
    [
        ({"elastic": True}, {}, "starts again, as its record says that it resumes"),
        ({"resumes": "hook"}, {}, "begins again from the start"),
        ({"resumes": "hook"}, {"checkpoint": SAVED}, "goes on from its checkpoint"),
        ({}, {"checkpoint": SAVED}, "goes on from its checkpoint"),
        ({}, {"hook": True}, "begins again from the start"),
    ],
)
def test_one_that_resumes_is_started_again_and_what_is_said_of_it_is_true(job_is: Doc, beat: Doc, words: str) -> None:
    message = written(world(plain(s.RUNNING, "a", **job_is), crashed(**beat), mine("a")), "restart")["message"]
    assert message.endswith(f"ValueError: no; {words}")


def test_a_lost_launch_that_had_trained_fails_too() -> None:
    lost = world(plain(s.RUNNING, "a"), seen(), mine("a"), lost=True)
    assert "its processes are gone; not started again" in written(lost, "failed")["message"]


def test_one_that_was_fenced_fails_with_a_sentence() -> None:
    fenced = told("exited", {"exit_code": -9, "fenced": True, "stop_asked": True})
    message = written(world(plain(s.RUNNING, "a"), fenced, mine("a")), "failed")["message"]
    assert "longer than its lease and was stopped; not started again" in message


def test_a_pod_of_a_users_own_volcano_job_is_volcanos_to_make_again() -> None:
    theirs = world(plain(s.RUNNING, "a", origin="volcano"), seen(), mine("a"), lost=True)
    assert written(theirs, "restart")["reshape"]["kind"] == "restart"
    ours = world(plain(s.RUNNING, "a", origin="volcano"), crashed(), mine("a"))
    written(ours, "failed")


def test_a_launch_that_never_trained_is_made_again() -> None:
    first = plain(s.INITIALIZING, "a", op=start_of("a"), generation=0, up=None)
    failed = world(first, None, [gpu("a", "one")], launch_asked=True, launch_failure="the disk is full")
    assert written(failed, "undo")["state"] == s.SUBMITTED


def test_an_exit_with_0_is_completed_as_ever() -> None:
    written(world(plain(s.RUNNING, "a"), told("exited", {"exit_code": 0}), mine("a")), "completed")


# fences


def test_on_one_machine_no_lease_ends_a_training_and_no_gpu_is_free_by_silence() -> None:
    here = Config(fences=False, many_pods=False)
    assert here.granted_s(leased=True) > 300 * 24 * 3600
    assert here.wait_out_s == math.inf
    again = Config(fences=True, many_pods=False)
    assert again.granted_s(leased=True) == again.lease_s
    assert again.wait_out_s == math.inf, "an endless lease may have been granted before"
    assert Config().wait_out_s < 400


def test_a_silent_launch_on_one_machine_keeps_its_gpus_until_its_lock_says_that_it_is_gone() -> None:
    w = World(config=replace(SHORT, fences=False, many_pods=False))
    w.submit("one", [2], Behaviour(iterations=10_000))
    w.run(lambda w: w.states()["one"] == s.RUNNING)
    w.machines.of("one").partitioned = True
    for _ in range(20):
        w.tick(60.0)
    assert w.states()["one"] == s.RUNNING
    assert {gpu["held_by"] for gpu in w.users.list("gpus") if gpu["state"] == s.IN_USE} == {"one"}
    assert w.broken() == []
    w.machines.of("one").partitioned = False
    w.tick()
    trainer = w.machines.present("one")
    assert trainer is not None and trainer.trains and trainer.number == 1


def test_a_job_that_is_forbidden_to_be_stopped_while_its_newcomer_comes_up_keeps_all_it_has() -> None:
    w = World(gpus=4)
    w.submit("one", [2, 4], Behaviour(iterations=10_000), elastic=True)
    w.run(lambda w: len(w.job("one").gpu_ids) == 4 and w.states()["one"] == s.RUNNING)
    for _ in range(60):
        w.tick()
    w.submit("two", [2], Behaviour(iterations=500))
    w.run(lambda w: w.states()["one"] == s.ADJUSTING)
    w.users.update("jobs", "one", {}, {"elastic": False})
    for _ in range(40):
        w.tick()
    assert len(w.job("one").gpu_ids) == 4 and w.states()["one"] == s.RUNNING and w.broken() == []


def test_a_name_is_free_again_only_once_nothing_can_run_under_it() -> None:
    w = World(config=replace(SHORT, fences=False, many_pods=False))
    w.submit("one", [2], Behaviour(iterations=10_000))
    w.run(lambda w: (m := w.machines.present("one")) is not None and m.trains and m.steps > 3)
    w.users.delete("jobs", "one")
    w.submit("one", [4], Behaviour(iterations=10), elastic=True)
    w.boot()
    for _ in range(8):
        w.tick()
        assert w.broken() == []


def test_a_fault_after_a_reshape_that_went_well_is_no_loss_of_ours() -> None:
    """What is lost when a node dies days later ends nobody's being reshaped."""
    good = told(generation=2, lost=Lost(0, 0.0, 2))
    job = plain(s.RUNNING, "a", resumes="checkpoint", stopped_by_us=2, generation=2)
    assert written(world(job, good, mine("a"), lost=True, node_unavailable=True), "undo")["stopped_by_us"] is None


def test_a_users_volcano_job_that_was_suspended_waits_and_is_not_failed() -> None:
    """Its pod is gone and no other one is made: that is for its user and Volcano to judge."""
    job = plain(s.RESTARTING, "a", origin="volcano", generation=2, op=start_of("a", generation=3))
    step = written(world(job, None, mine("a"), launch_failure="its Volcano Job is suspended"), "undo")
    assert step["state"] == s.SUBMITTED
    ours = plain(s.RESTARTING, "a", generation=2, op=start_of("a", generation=3))
    assert written(world(ours, None, mine("a"), launch_failure="gone"), "failed")["state"] == s.FAILED


def test_a_job_that_can_be_told_nothing_any_more_is_cancelled_by_removing_its_launch() -> None:
    """On one machine no lease would ever end it: its sidecar may have lost its coordinator for good."""
    silent = world(plain(s.RUNNING, "a", cancel=True, generation=1, launch=1), told(), mine("a"))
    assert next_step(replace(silent, unreachable=True)) == RequestRemoval()
    assert next_step(silent) == StopTrainer(2, wait=False)
    assert isinstance(next_step(replace(silent, unreachable=True, remove_asked=True)), Wait)
