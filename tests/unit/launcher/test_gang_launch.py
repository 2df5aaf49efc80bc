"""What the launcher does next about one launch of several pods, from how things stand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.cluster.controllers.gang_launch import pod_bindings, pod_entry, steps
from launcher.cluster.controllers.launch import (
    AdoptPod,
    DeleteLaunch,
    DeletePod,
    LaunchState,
    PlayLaunch,
    PlayRemove,
    PodBinding,
    ScaleVolcanoJob,
    Step,
)
from launcher.cluster.pods.pod_state import Pod
from tests.unit.launcher.launch_steps import actions, changes
from tests.unit.launcher.test_pods import ENDED, RUNNING, WAITING, pod

Doc = dict[str, Any]

NODES = {"g0": "node-a", "g1": "node-b", "g2": "node-b", "g3": "node-a"}


def record(wanted: str = "launch", gpus: str = "g0 g1", **more: Any) -> Doc:
    doc = {"_id": "j", "gpus_per_pod": 1, "gpu_ids": gpus.split(), **more.pop("doc", {})}
    about = {"_id": "j-l1", "job_id": "j", "uid": "u", "launch": 1, "origin": "record", "wanted": wanted, "doc": doc}
    return {**about, "failure": None, "gone": False, "pod": None, "version": 1, "applied": True, **more}


def job(replicas: int = 2, least: int | None = None, phase: str = "Running", **meta: Any) -> Doc:
    tasks = [{"name": "trainer", "replicas": replicas, "minAvailable": least or replicas}]
    spec = {"tasks": tasks, "minAvailable": least or replicas, "queue": "reshape"}
    return {"metadata": {"name": "j-l1", "uid": "v", **meta}, "spec": spec, "status": {"state": {"phase": phase}}}


def member(index: int, state: Doc | None = RUNNING, phase: str = "Running", uid: str = "", **more: Any) -> Pod:
    name = f"j-l1-trainer-{index}"
    meta = {"name": name, "uid": uid or f"p{index}", "annotations": {"volcano-reshape.io/launch": f"{name}-0a1b2c3d"}}
    deleted, sure = more.pop("deleted", False), more.pop("sure", True)
    node = more.pop("node", NODES[f"g{index}"])
    return Pod(pod(state, phase, node, meta={**meta, **more.pop("meta", {})}, **more), deleted, sure)


def entries(*pods: Pod | None, **more: Any) -> Doc:
    there = [{**pod_entry(pod, applied=True), **more} if pod else None for pod in pods]
    about = {k: v for k, v in (there[0] or {}).items() if k not in ("secret", "applied", "left")} or None
    return {"pods": there, "pod": about}


def view(record: Doc, pods: tuple[Pod, ...] = (), job: Doc | None = None, **more: Any) -> LaunchState:
    return LaunchState(record, pods, job, bindings=pod_bindings(record["doc"], NODES), **more)


def acts(view: LaunchState) -> list[Step]:
    return actions(steps(view))


def facts(view: LaunchState) -> Doc:
    return changes(steps(view))


def test_each_pod_has_its_part_of_the_gpus_in_their_order() -> None:
    doc = {"_id": "j", "gpus_per_pod": 2, "gpu_ids": ["g0", "g3", "g1", "g2"]}
    assert pod_bindings(doc, NODES) == (PodBinding("node-a", ("g0", "g3")), PodBinding("node-b", ("g1", "g2")))
    assert pod_bindings({**doc, "gpus_per_pod": None}, NODES) == ()
    assert pod_bindings({**doc, "gpu_ids": ["other", "g9"]}, NODES) == (PodBinding(None, ("other", "g9")),)


# up


def test_it_is_played_once_and_then_each_pod_that_has_its_node_gets_a_secret() -> None:
    assert acts(view(record(applied=False))) == [PlayLaunch()]
    first, second = member(0, WAITING, "Pending"), member(1, None, "Pending", node=None)
    assert acts(view(record(), (first, second), job())) == [AdoptPod(first, 0)]
    placed = member(1, WAITING, "Pending")
    known = record(**entries(first))
    assert acts(view(known, (first, placed), job())) == [AdoptPod(placed, 1)]
    assert acts(view(record(**entries(first, placed)), (first, placed), job())) == []


def test_a_launcher_that_was_killed_between_the_two_writes_gives_the_secret_again() -> None:
    half = record(**entries(member(0), member(1, WAITING), applied=False))
    pods = (member(0), member(1, WAITING))
    assert acts(view(half, pods, job())) == [AdoptPod(pods[0], 0), AdoptPod(pods[1], 1)]


def test_a_pod_that_was_made_when_something_else_was_meant_is_made_again() -> None:
    elsewhere = member(1, WAITING, "Pending", node="node-a")
    assert acts(view(record(), (elsewhere,), job())) == [DeletePod(elsewhere)]
    pinned = member(1, None, "Pending", node=None, nodeSelector={"kubernetes.io/hostname": "node-a"})
    assert acts(view(record(), (pinned,), job())) == [DeletePod(pinned)]
    bare = member(1, WAITING, "Pending")
    assert acts(view(record(doc={"checkpoint_claim": "kept"}), (bare,), job())) == [DeletePod(bare)]
    for name in ("reshape-checkpoints", "their-own"):
        claim = [{"name": name, "persistentVolumeClaim": {"claimName": "kept"}}]
        mounts = [{"name": "main", "volumeMounts": [{"name": name, "mountPath": "/reshape/checkpoints"}]}]
        kept = member(1, WAITING, "Pending", volumes=claim, containers=mounts)
        assert acts(view(record(doc={"checkpoint_claim": "kept"}), (kept,), job())) == [AdoptPod(kept, 1)]


def test_in_recreate_mode_a_pod_holds_its_own_part() -> None:
    doc = {"devices": "recreate"}
    pods = member(0, WAITING, "Pending"), member(1, WAITING, "Pending")
    for each, gpu in zip(pods, ("g0", "g0"), strict=True):
        each.doc["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": gpu}]
    assert acts(view(record(doc=doc), pods, job())) == [AdoptPod(pods[0], 0), DeletePod(pods[1])]


@pytest.mark.parametrize("secret", ["database-password", "j-l1-trainer-1-0a1b2c3d", None])
def test_a_pod_that_waits_for_another_secret_gets_none(secret: str | None) -> None:
    notes = {"volcano-reshape.io/launch": secret} if secret else {}
    assert acts(view(record(), (member(0, WAITING, meta={"annotations": notes}),), job())) == []


def test_of_what_is_known_pod_0_stands_where_that_of_a_job_with_one_pod_does() -> None:
    pods = member(0), member(1)
    known = record(**entries(member(0, WAITING, "Pending"), member(1)))
    assert facts(view(known, pods, job())) == entries(*pods)
    assert facts(view(record(**entries(*pods)), pods, job())) == {}


def test_the_first_trouble_is_the_launchs_and_then_nothing_more_is_done() -> None:
    stuck = member(1, {"waiting": {"reason": "ErrImageNeverPull", "message": "not there"}}, "Pending")
    known = record(**entries(member(0), stuck))
    found = facts(view(known, (member(0), stuck), job()))
    assert found["failure"] == "pod 1: its container trainer does not start: not there"
    assert acts(view({**known, "failure": "no"}, (member(0), stuck), job(3))) == []
    refused = member(1, None, "Failed", status={"reason": "OutOfcpu", "message": "no cpu"})
    assert facts(view(record(), (refused,), job()))["failure"].startswith("pod 1: node node-b refused its pod")


def test_a_volcano_job_that_is_gone_is_a_failure_where_no_pod_lives() -> None:
    assert facts(view(record(), (), None)) == {"failure": "its Volcano Job was deleted"}
    aborted = facts(view(record(), (), job(phase="Aborted")))
    assert aborted == {"failure": "its Volcano Job is Aborted, so no pods come up"}
    pods = member(0), member(1)
    assert facts(view(record(**entries(*pods)), pods, None)) == {}
    why = "Volcano cannot make its pods: exceeded quota"
    assert facts(view(record(), (), job(), refused="exceeded quota")) == {"failure": why, "unplaced": why}
    known = record(**entries(member(0)))
    assert facts(view(known, (member(0),), job(), refused="exceeded quota")) == {"unplaced": why}


def test_what_keeps_a_pod_from_its_node_is_no_failure() -> None:
    full = [{"type": "PodScheduled", "status": "False", "message": "Insufficient cpu"}]
    waiting = member(1, None, "Pending", node=None, status={"conditions": full})
    why = "pod 1: Volcano finds no place for its pod: Insufficient cpu"
    assert facts(view(record(**entries(member(0))), (member(0), waiting), job())) == {"unplaced": why}
    assert "queue reshape yet" in facts(view(record(), (), job(phase="Pending")))["unplaced"]
    full[0]["message"] = "2 node(s) didn't match Pod's node affinity/selector."
    assert "docs/volcano.md" in facts(view(record(**entries(member(0))), (member(0), waiting), job()))["unplaced"]
    placed = record(unplaced=why, **entries(member(0), member(1)))
    assert facts(view(placed, (member(0), member(1)), job())) == {"unplaced": None}


# other sizes


def test_growing_makes_the_pods_first_and_counts_on_them_once_they_are_there() -> None:
    two = member(0), member(1)
    grown = record(gpus="g0 g1 g2", **entries(*two))
    assert acts(view(grown, two, job(2))) == [ScaleVolcanoJob(3, 2)]
    third = member(2, WAITING, "Pending")
    assert acts(view(grown, (*two, third), job(3, 2))) == [AdoptPod(third, 2)]
    known = record(gpus="g0 g1 g2", **entries(*two, third))
    assert acts(view(known, (*two, third), job(3, 2))) == [ScaleVolcanoJob(3, 3)]
    assert acts(view(known, (*two, third), job(3))) == []


def test_shrinking_takes_the_last_pods_and_forgets_them_once_they_have_ended() -> None:
    three = member(0), member(1), member(2)
    shrunk = view(record(**entries(*three)), three, job(3))
    assert [pod and pod["left"] for pod in facts(shrunk)["pods"]] == [False, False, True]
    assert acts(shrunk) == [ScaleVolcanoJob(2, 2)]
    leaving = record(**facts(shrunk))
    assert acts(view(leaving, three, job(2))) == []  # Volcano deletes it
    ended = (*three[:2], member(2, ENDED, "Failed"))
    assert facts(view(leaving, ended, job(2)))["pods"] == leaving["pods"][:2]
    assert facts(view(leaving, three[:2], job(2)))["pods"] == leaving["pods"][:2]


def test_a_member_that_left_and_is_wanted_again_is_another_pod() -> None:
    three = member(0), member(1), member(2)
    known = record(gpus="g0 g1 g2", **entries(*three))
    known["pods"][2]["left"] = True
    assert acts(view(known, three, job(3, 2))) == [DeletePod(three[2])]
    assert facts(view(known, three[:2], job(3, 2)))["pods"][2] is None
    new = member(2, WAITING, "Pending", uid="new")
    assert acts(view(known, (*three[:2], new), job(3, 2))) == [AdoptPod(new, 2)]


def test_the_end_of_a_pod_that_left_is_no_trouble_of_the_one_that_is_to_come() -> None:
    three = member(0), member(1), member(2, ENDED, "Failed", meta={"deletionTimestamp": "now"})
    known = record(gpus="g0 g1 g2", **entries(*three))
    known["pods"][2]["left"] = True
    later = {**known, **facts(view(known, three, job(2)))}
    assert later["pods"][2] is None
    assert facts(view(later, three, job(2))) == {}
    assert acts(view(later, three, job(2))) == [ScaleVolcanoJob(3, 2)]


def test_a_member_given_up_and_asked_for_on_another_node_meanwhile_is_made_again() -> None:
    pods = member(0), member(1)
    elsewhere = record(gpus="g0 g3", **entries(*pods))
    assert facts(view(elsewhere, pods, job()))["pods"][1]["left"]
    assert acts(view(elsewhere, pods, job())) == [DeletePod(pods[1])]


def test_a_pod_in_the_place_of_one_that_was_lost_gets_nothing() -> None:
    pods = member(0), member(1, WAITING, "Pending", uid="new")
    assert acts(view(record(**entries(member(0), member(1, ENDED, "Failed"))), pods, job())) == []


def test_a_gang_that_its_own_policies_would_end_is_never_made_smaller() -> None:
    three = member(0), member(1), member(2)
    given = job(3)
    given["spec"]["policies"] = [{"event": "PodEvicted", "action": "RestartJob"}]
    assert ScaleVolcanoJob(2, 2) not in acts(view(record(**entries(*three)), three, given))


def test_what_its_user_wrote_stays_until_all_pods_are_there() -> None:
    theirs = record(origin="volcano", applied=False)
    assert acts(view(theirs, (), job(2, 1))) == []
    assert acts(view(theirs, (), job(1))) == [ScaleVolcanoJob(2, 1)]
    pods = member(0), member(1)
    assert acts(view(record(origin="volcano", **entries(*pods)), pods, job(2, 1))) == [ScaleVolcanoJob(2, 2)]


# down


def test_gone_is_when_all_that_had_a_secret_have_ended() -> None:
    pods = member(0, ENDED, "Succeeded"), member(1)
    known = record(**entries(member(0), member(1)))
    assert "gone" not in facts(view(known, pods, job()))
    both = pods[0], member(1, ENDED, "Failed")
    assert facts(view(known, both, job()))["gone"]
    assert facts(view(record(**entries(member(0))), (pods[0], member(1, WAITING)), job()))["gone"]
    vanished = member(1, deleted=True)
    assert "gone" not in facts(view(known, (pods[0], vanished), job()))


def test_its_volcano_job_is_removed_unless_it_has_finished() -> None:
    pods, ended = (member(0), member(1)), (member(0, ENDED, "Succeeded"), member(1, ENDED, "Succeeded"))
    known = record("remove", **entries(*pods))
    assert acts(view(known, pods, job())) == [PlayRemove()]
    done = record("remove", gone=True, **entries(*ended))
    assert acts(view(done, ended, job(), over=True)) == [PlayRemove()]  # it has made pods in the place of these
    assert acts(view(done, ended, job(), over=True, ended=True, patient=True)) == []  # Volcano completes it by itself
    assert acts(view(done, ended, job(phase="Completed"), over=True)) == [DeleteLaunch()]
    assert acts(view({**done, "moved": True}, ended, job(phase="Completed"), over=True)) == [PlayRemove()]
    assert acts(view(done, ended, None, over=True)) == [DeleteLaunch()]
    assert acts(view(done, ended, None)) == []  # the coordinator may still ask
    assert facts(view(record("remove"), (), None)) == {"gone": True}


def test_pods_of_a_user_are_made_again_for_another_launch_also_one_that_failed() -> None:
    pods = member(0), member(1, ENDED, "Failed")
    known = record("remove", origin="volcano", **entries(*pods))
    runs = view(known, pods, job())
    assert acts(runs) == [DeletePod(pods[0]), DeletePod(pods[1])]
    assert acts(replace(runs, ended=True)) == []  # Volcano is asked to end the whole job
    assert facts(view(record("remove", origin="volcano"), pods, job())) == {"gone": True}  # none had a Secret
    gone = record("remove", origin="volcano", gone=True, **entries(*pods))
    assert acts(view(gone, (), job(), over=True)) == [DeleteLaunch()]
