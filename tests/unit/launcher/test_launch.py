"""What the launcher does next about one launch, from how things stand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.cluster.controllers.launch import (
    AdoptPod,
    DeleteLaunch,
    DeletePod,
    LaunchState,
    PlayLaunch,
    PlayRemove,
    Step,
    steps,
)
from launcher.cluster.pods.pod_state import Pod
from tests.unit.launcher.launch_steps import actions, changes
from tests.unit.launcher.test_pods import ENDED, LOST, RUNNING, WAITING, pod

Doc = dict[str, Any]


def record(wanted: str = "launch", origin: str = "record", **more: Any) -> Doc:
    doc = {"_id": "j", "node": "node-a", **more.pop("doc", {})}
    about = {"_id": "j-l1", "job_id": "j", "uid": "u", "launch": 1, "origin": origin, "wanted": wanted, "doc": doc}
    return {**about, "failure": None, "gone": False, "pod": None, "version": 1, **more}


def job(phase: str = "Running", **meta: Any) -> Doc:
    return {"metadata": {"name": "j-l1", "uid": "v", **meta}, "status": {"state": {"phase": phase}}}


def seen(state: Doc | None = RUNNING, phase: str = "Running", uid: str = "p1", **more: Any) -> Pod:
    deleted, sure = more.pop("deleted", False), more.pop("sure", True)
    meta = {"uid": uid, "annotations": {"volcano-reshape.io/launch": "p-0a1b2c3d"}, **more.pop("meta", {})}
    return Pod(pod(state, phase, meta=meta, **more), deleted, sure)


def noted(pod_: Pod) -> Doc:
    return {**pod_.record(), "ended": pod_.ended}


def acts(view: LaunchState) -> list[Step]:
    return actions(steps(view))


def facts(view: LaunchState) -> Doc:
    return changes(steps(view))


# of our own


def test_a_launch_that_is_wanted_is_played_until_it_is_applied() -> None:
    assert acts(LaunchState(record(), (), None)) == [PlayLaunch()]
    assert acts(LaunchState(record(applied=True), (), job())) == []
    assert acts(LaunchState(record(failure="no"), (), None)) == []  # until the coordinator asks again


def test_its_pod_is_written_down() -> None:
    found = facts(LaunchState(record(applied=True), (seen(),), job()))
    assert found == {"pod": {**seen().record(), "ended": False}}
    assert facts(LaunchState(record(applied=True, pod=noted(seen())), (seen(),), job())) == {}


def test_a_pod_that_cannot_come_up_is_a_failed_launch() -> None:
    stuck = seen({"waiting": {"reason": "ErrImageNeverPull", "message": "not there"}}, "Pending")
    assert facts(LaunchState(record(applied=True), (stuck,), job()))["failure"] == (
        "its container trainer does not start: not there"
    )


@pytest.mark.parametrize(
    ("there", "why"),
    [(None, "its Volcano Job was deleted"), (job("Terminated"), "its Volcano Job is Terminated, so no pod comes up")],
)
def test_a_volcano_job_without_a_pod_to_come_is_a_failed_launch(there: Doc | None, why: str) -> None:
    assert facts(LaunchState(record(applied=True), (), there)) == {"failure": why}
    assert facts(LaunchState(record(applied=True, pod=noted(seen())), (seen(),), there)) == {}  # its pod still runs


def test_gone_is_what_the_kubelet_proved() -> None:
    ended = seen(ENDED, "Succeeded")
    assert facts(LaunchState(record("remove", applied=True, pod=noted(seen())), (ended,), job()))["gone"]
    for unproven in (seen(LOST), seen(deleted=True), seen(WAITING, deleted=True)):
        assert "gone" not in facts(LaunchState(record("remove", applied=True, pod=noted(seen())), (unproven,), None))


def test_a_pod_that_vanished_unseen_proves_nothing_whatever_another_one_says() -> None:
    known = record("remove", applied=True, pod=noted(seen(uid="p0")))
    assert "gone" not in facts(LaunchState(known, (), None))
    assert "gone" not in facts(LaunchState(known, (seen(ENDED, "Succeeded"),), None))


def test_a_launch_that_never_had_a_pod_is_gone_once_its_volcano_job_is() -> None:
    assert acts(LaunchState(record("remove", applied=True), (), job())) == [PlayRemove()]
    assert facts(LaunchState(record("remove", applied=True), (), job(deletionTimestamp="now"))) == {}
    assert facts(LaunchState(record("remove", applied=True), (), None)) == {"gone": True}
    assert acts(LaunchState(record("remove"), (), None, busy=True)) == [PlayRemove()]  # its playbook may yet make one


def test_what_is_to_go_is_removed_but_a_finished_volcano_job_stays_for_its_user() -> None:
    runs = LaunchState(record("remove", applied=True, pod=noted(seen())), (seen(),), job())
    assert acts(runs) == [PlayRemove()]
    ended = seen(ENDED, "Succeeded")
    finished = LaunchState(record("remove", applied=True, pod=noted(ended), gone=True), (ended,), job(), over=True)
    assert acts(finished) == [DeleteLaunch()]
    assert acts(replace(finished, over=False)) == []  # the coordinator may still ask
    vanished = replace(finished, pods=())
    assert acts(vanished) == [DeleteLaunch()]  # it knows from before that its pod finished


@pytest.mark.parametrize("phase", ["Running", "Completed", "Terminated"])
def test_a_volcano_job_that_ended_as_its_job_moved_away_is_removed_and_does_not_stay(phase: str) -> None:
    ended = seen(ENDED, "Failed")
    left = record("remove", applied=True, pod=noted(ended), gone=True, moved=True, failure="its container has ended")
    view = LaunchState(left, (ended,), job(phase), over=True)
    assert acts(view) == [PlayRemove()]
    assert acts(replace(view, job=job(phase, deletionTimestamp="now"))) == [DeleteLaunch()]
    assert acts(replace(view, job=None, pods=())) == [DeleteLaunch()]


def test_the_pod_of_a_job_that_ended_gets_time_to_end_by_itself() -> None:
    view = LaunchState(record("remove", applied=True, pod=noted(seen())), (seen(),), job(), ended=True, patient=True)
    assert acts(view) == []
    assert acts(replace(view, patient=False)) == [PlayRemove()]


# of a user's Volcano Job


def theirs(wanted: str = "launch", **more: Any) -> Doc:
    return record(wanted, "volcano", **more)


def test_a_users_pod_gets_its_secret_once_it_is_where_it_was_decided() -> None:
    waiting = seen(None, "Pending", node=None)
    assert acts(LaunchState(theirs(), (waiting,), job())) == []
    there = seen(WAITING, "Pending")
    assert acts(LaunchState(theirs(), (there,), job())) == [AdoptPod(there)]
    half = theirs(pod=noted(there))
    assert acts(LaunchState(half, (there,), job())) == [AdoptPod(there)]  # a launcher was killed between the two writes
    assert acts(LaunchState({**half, "applied": True}, (there,), job())) == []


def test_a_pod_on_its_way_out_is_not_taken() -> None:
    assert acts(LaunchState(theirs(), (seen(meta={"deletionTimestamp": "now"}),), job())) == []
    assert acts(LaunchState(theirs(), (seen(ENDED, "Succeeded"),), job())) == []


def test_a_pod_without_our_annotation_is_not_ours() -> None:
    assert acts(LaunchState(theirs(), (seen(meta={"annotations": {}}),), job())) == []


@pytest.mark.parametrize("secret", ["database-password", "p1", "j-0-0a1b2c3", "other-0-0a1b2c3d", "-0a1b2c3d"])
def test_a_pod_that_claims_another_secret_does_not_make_us_write_over_it(secret: str) -> None:
    liar = seen(meta={"annotations": {"volcano-reshape.io/launch": secret}})
    assert acts(LaunchState(theirs(), (liar,), job())) == []


def test_a_pod_made_for_another_node_is_made_again() -> None:
    wrong = seen(None, "Pending", node=None, nodeSelector={"kubernetes.io/hostname": "node-b"})
    assert acts(LaunchState(theirs(), (wrong,), job())) == [DeletePod(wrong)]


def test_a_pod_that_volcano_started_unasked_elsewhere_is_made_again_and_costs_no_try() -> None:
    elsewhere = seen(WAITING, "Pending", node="node-b")
    for number in (1, 2):
        view = LaunchState(theirs(launch=number), (elsewhere,), job())
        assert acts(view) == [DeletePod(elsewhere)]
        assert facts(view) == {}


def test_what_its_job_left_behind_is_not_launched_however_late_somebody_asks() -> None:
    assert acts(LaunchState(record(), (), None, over=True)) == []
    assert facts(LaunchState(record(), (), None, over=True)) == {"gone": True}
    assert acts(LaunchState(record(gone=True), (), None, over=True)) == [DeleteLaunch()]
    assert acts(LaunchState(record(applied=True), (seen(),), job(), over=True)) == [PlayRemove()]
    assert facts(LaunchState(theirs(), (seen(),), job(), over=True)) == {"gone": True}


def test_what_keeps_a_pod_from_its_node_is_written_down_and_is_no_failure() -> None:
    full = [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient cpu"}]
    waiting = seen(None, "Pending", node=None)
    waiting.doc["status"]["conditions"] = full
    why = "Volcano finds no place for its pod: 0/2 nodes: Insufficient cpu"
    for given in (record(applied=True), theirs()):
        assert facts(LaunchState(given, (waiting,), job()))["unplaced"] == why
        assert "failure" not in facts(LaunchState(given, (waiting,), job()))
    placed = record(applied=True, unplaced=why, pod=noted(seen()))
    assert facts(LaunchState(placed, (seen(),), job())) == {"unplaced": None}
    not_in = {**job("Pending"), "spec": {"queue": "small"}}
    assert facts(LaunchState(record(applied=True), (), not_in)) == {
        "unplaced": "Volcano has not let its Volcano Job into queue small yet"
    }


def test_in_recreate_mode_a_pod_made_for_other_gpus_is_made_again() -> None:
    doc = {"devices": "recreate", "gpu_ids": ["a", "b"]}
    old, new = seen(None, "Pending"), seen(None, "Pending")
    old.doc["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "a"}]
    new.doc["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "a,b"}]
    assert acts(LaunchState(theirs(doc=doc), (old,), job())) == [DeletePod(old)]
    assert acts(LaunchState(theirs(doc=doc), (new,), job())) == [AdoptPod(new)]


def test_one_launch_has_one_pod() -> None:
    """Volcano made another one, say: it waits until the launch that it belongs to is asked for."""
    first, second = seen(), seen(WAITING, "Pending", uid="p2")
    assert acts(LaunchState(theirs(pod=noted(first), applied=True), (first, second), job())) == []
    ended = seen(ENDED, "Failed")
    view = LaunchState(theirs(pod=noted(first), applied=True), (ended, second), job())
    assert facts(view)["gone"] and acts(view) == []


def test_a_launch_that_no_pod_had_is_gone_at_once() -> None:
    assert facts(LaunchState(theirs("remove"), (seen(),), job())) == {"gone": True}


def test_a_users_pod_is_deleted_for_another_launch_but_left_to_volcano_when_the_job_ended() -> None:
    running = seen()
    view = LaunchState(theirs("remove", pod=noted(running), applied=True), (running,), job())
    assert acts(view) == [DeletePod(running)]
    assert acts(replace(view, ended=True)) == []
