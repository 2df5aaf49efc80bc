"""What each kind of event stores and shows: the same fields in the same order, whatever the classes are called."""

from __future__ import annotations

import json

import pytest

from coordinator.model import events as e
from coordinator.model.records import GpuRecord

PIDS = {"sidecar_pid": 11, "shim_pid": 12, "trainer_pid": 13}
RESHAPE = {"stages_s": {"exit": 0.5}, "gap_s": 2.0, "direction": "up", "from_gpus": 1, "to_gpus": 2}
CHANGED = {**RESHAPE, "newcomer": 7, "how": "in place"}
SHOWN = {**RESHAPE, "for": 7, "how": "in place"}
GPU = GpuRecord({"_id": "a", "state": "in use", "job_id": 7, "held_by": "two", "version": 3})

PUBLIC = [
    (e.JobSubmitted([]), {"type": "submitted", "problems": []}),
    (e.JobRefused(["no command"]), {"type": "refused", "problems": ["no command"]}),
    (e.JobDecided("one-v1", 0.25), {"type": "decided", "decision_id": "one-v1", "decide_s": 0.25}),
    (e.JobWaits("s"), {"type": "waits", "sentence": "s"}),
    (e.HoldWithdrawn(), {"type": "hold withdrawn"}),
    (e.JobStays("s"), {"type": "stays", "sentence": "s"}),
    (e.JobWarned("s"), {"type": "warned", "sentence": "s"}),
    (e.DeadlineMissed(3.0, "s"), {"type": "missed", "late_s": 3.0, "sentence": "s"}),
    (e.ProgressLost("s"), {"type": "lost", "sentence": "s"}),
    (e.JobStalled("s"), {"type": "stalled", "sentence": "s"}),
    (e.StepsAgain(), {"type": "steps again"}),
    (e.SavingTold("s"), {"type": "saving", "sentence": "s"}),
    (e.CpuLimited("d", 0.5, "s"), {"type": "limited", "decision_id": "d", "cores": 0.5, "sentence": "s"}),
    (e.CpuReleased("d", None, "s"), {"type": "released", "decision_id": "d", "cores": None, "sentence": "s"}),
    (e.VictimBooked(1, 7), {"type": "adjusting", "to": 1, "for": 7}),
    (e.LaunchRequested(), {"type": "launching"}),
    (e.PodsRequested(3), {"type": "scaling", "pods": 3}),
    (e.JobInitialized(), {"type": "initialized"}),
    (e.StopSent(4, 99.0), {"type": "stop sent", "generation": 4}),
    (e.ResourcesGranted(2, ""), {"type": "granted", "gpus": 2, "sentence": ""}),
    (e.StartSent(4, 99.0), {"type": "start sent", "generation": 4}),
    (e.JobRunning(), {"type": "running"}),
    (
        e.JobStarted(stages_s={"launch": 1.0}, **PIDS, decision_id="d"),
        {"type": "started", "stages_s": {"launch": 1.0}, **PIDS, "decision_id": "d"},
    ),
    (
        e.JobRestarted(stages_s={}, gap_s=None, **PIDS, decision_id=None),
        {"type": "restarted", "stages_s": {}, "gap_s": None, **PIDS, "decision_id": None},
    ),
    (e.JobReshaped(**CHANGED, **PIDS, decision_id="d"), {"type": "reshaped", **SHOWN, **PIDS, "decision_id": "d"}),
    (
        e.JobMoved(**CHANGED, from_node="x", to_node="y", **PIDS, decision_id="d"),
        {"type": "moved", **SHOWN, "from_node": "x", "to_node": "y", **PIDS, "decision_id": "d"},
    ),
    (e.OperationRenumbered(), {"type": "renumbered"}),
    (e.OperationUndone("s"), {"type": "undone", "sentence": "s"}),
    (e.JobRestarting("s"), {"type": "restarting", "sentence": "s"}),
    (e.JobYielded("s"), {"type": "yielded", "sentence": "s"}),
    (e.JobHeld("s"), {"type": "held", "sentence": "s"}),
    (e.NoticeSent("s"), {"type": "told", "sentence": "s"}),
    (e.NoticeFailed("s"), {"type": "not told", "sentence": "s"}),
    (e.JobCompleted("s"), {"type": "completed", "sentence": "s"}),
    (e.JobFailed("s"), {"type": "failed", "sentence": "s"}),
    (e.JobCancelled("s"), {"type": "cancelled", "sentence": "s"}),
    (e.RemovalRequested(2), {"type": "removing", "launch": 2}),
    (e.LaunchRemoved(), {"type": "removed"}),
    (e.JobClosed(), {"type": "closed"}),
    (
        e.UserAsked("ann", "cancel", "one"),
        {"type": "asked", "user": "ann", "verb": "cancel", "about": "one"},
    ),
    (e.GpuChanged(GPU, GPU), {"type": "gpu", "gpu_id": "a", "state": "in use", "job_id": 7, "held_by": "two"}),
]


@pytest.mark.parametrize(("event", "shown"), PUBLIC, ids=[str(shown["type"]) for _, shown in PUBLIC])
def test_an_event_is_stored_and_shown_under_its_type_with_its_fields_in_order(event, shown) -> None:
    assert json.dumps(event.public()) == json.dumps(shown)


def test_each_kind_is_listed_above_and_has_a_type_of_its_own() -> None:
    assert {type(event) for event, _ in PUBLIC} == set(e.JobEvent.__subclasses__())
    assert len({shown["type"] for _, shown in PUBLIC}) == len(PUBLIC)


def test_the_reason_of_an_event_is_its_sentence_or_nothing() -> None:
    assert (e.OperationUndone("its node is away").reason, e.JobInitialized().reason) == ("its node is away", "")
