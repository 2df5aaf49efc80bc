"""Users' Volcano Jobs and Queues: what follows from them in the store, on a real store and an API in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Fatal
from coordinator.model.records import JobRecord
from coordinator.model.schema.job_fields import MOST_PRIORITY
from coordinator.stores.sqlite import SqliteStore
from launcher import names
from launcher.admission.inject import GPU, PodSettings
from launcher.admission.owners import owner_annotations
from launcher.cluster.controllers.volcano_job import RECENT_S, VolcanoJobController
from launcher.cluster.controllers.volcano_job_document import MORE
from launcher.cluster.event_writer import EventWriter, event_stamp
from launcher.cluster.pods.pod_state import ObservedCluster, Pod
from tests.fakes.kube import Kube
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.unit.launcher.test_pods import RUNNING, pod
from tests.unit.launcher.test_volcano_jobs import GPUS, gang, trainer, vcjob

Doc = dict[str, Any]

SETTINGS = PodSettings(image="ours:1", coordinator="http://c:8080")
KEY = "volcano-1234abcd-0000"
MASTER_KEY = b"master"
OWNER = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "uid": "1234abcd-0000"}


class Time:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return 1.7e9 + self.at

    def boot_id(self) -> str:
        return "since this test began"


class Ground:
    """Doors on a fresh store; `turn` is one turn with what the API shows."""

    def __init__(self, folder: Path) -> None:
        self.store, self.kube, self.time = SqliteStore(str(folder / "store.db")), Kube(), Time()
        self.kube.put("Queue", "reshape", None, meta={"labels": {"volcano-reshape.io/inject": "true"}})
        selector = {"matchExpressions": [{"key": "volcano.sh/queue-name", "operator": "In", "values": ["none"]}]}
        by_queue = {"name": "queue.volcano-reshape.io", "objectSelector": selector}
        webhooks = [{"name": "label.volcano-reshape.io"}, by_queue]
        self.kube.put("MutatingWebhookConfiguration", "reshape-inject", None, webhooks=webhooks)
        self.doors = self.another()

    def another(self) -> VolcanoJobController:
        """A launcher that was started anew."""
        news = EventWriter(self.kube, self.time, "test")
        return VolcanoJobController(
            self.store, self.kube, self.time, news, SETTINGS, patience_s=10.0, master_key=MASTER_KEY
        )  # type: ignore[arg-type]

    def turn(self, *jobs: Doc, pods: tuple[Pod, ...] = ()) -> None:
        queues = {q["metadata"]["name"]: q for q in self.kube.of("Queue")}
        observed = ObservedCluster({p.uid: p for p in pods}, {j["metadata"]["uid"]: j for j in jobs}, queues)
        self.doors.turn(observed, {str(d["_id"]): d for d in self.store.list("jobs", {"closed": False})})

    def job(self, key: str = KEY) -> Doc | None:
        return self.store.get("jobs", key)

    def let_in(self, **more: Any) -> None:
        self.store.update("jobs", KEY, {}, {"uid": "u1", "closed": False, **more})

    def selected(self) -> list[str]:
        webhook = self.kube.of("MutatingWebhookConfiguration")[0]["webhooks"][1]
        (expression,) = webhook["objectSelector"]["matchExpressions"]
        return list(expression["values"])


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.store.close()


def test_a_volcano_job_in_a_labelled_queue_becomes_one_job_document(ground: Ground) -> None:
    for doors in (ground.doors, ground.another()):
        ground.doors = doors
        ground.turn(vcjob())
        ground.turn(vcjob())
    assert [doc["job_id"] for doc in ground.store.list("jobs")] == ["team.train"]
    assert ground.kube.events() == []


def test_why_a_job_waits_is_an_event_at_most_every_ten_minutes(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in(state="submitted", message="waits for its turn")
    ground.turn(vcjob())
    assert ground.kube.events() == []
    for minutes, message in ((0, "no GPU is idle"), (5, "no node has 4"), (10, "no node has 4")):
        ground.time.at = 1000.0 + 60 * minutes
        ground.store.update("jobs", KEY, {}, {"message": message})
        ground.turn(vcjob())
    assert ground.kube.events() == [("Waits", "no GPU is idle"), ("Waits", "no node has 4")]
    ground.store.update("jobs", KEY, {}, {"state": "running", "message": "trains"})
    ground.time.at += 3600
    ground.turn(vcjob())
    assert len(ground.kube.events()) == 2


def test_what_would_start_a_job_is_an_event_at_once_when_it_is_found_and_in_the_words_of_its_message(
    ground: Ground,
) -> None:
    world = World.training([4], Behaviour(iterations=10**6))
    world.submit("two", [2])
    world.tick()
    sentence = str(world.job("two").doc["message"])
    plain, _, added = sentence.partition(" two would start")
    ground.turn(vcjob())
    ground.let_in(state="submitted", message=plain)
    ground.turn(vcjob())
    ground.store.update("jobs", KEY, {}, {"message": sentence})
    ground.time.at += 1.0
    ground.turn(vcjob())
    ground.turn(vcjob())
    assert added == " now if one might run on 2 GPUs."
    assert ground.kube.events() == [("Waits", plain), ("Waits", world.api.jobs.job("two")["message"])]


def test_one_that_nobody_asked_for_is_left_alone(ground: Ground) -> None:
    ground.turn(vcjob(queue="default", meta={"annotations": {}}), vcjob(meta={"deletionTimestamp": "now"}))
    ground.turn({**vcjob(), "status": {"state": {"phase": "Completed"}}})
    assert ground.store.list("jobs") == []


def test_the_same_name_again_after_the_first_has_ended_is_another_job(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in(state="completed", closed=True)
    ground.turn(vcjob(uid="99999999-1"))
    assert [doc["job_id"] for doc in ground.store.list("jobs")] == ["team.train", "team.train.99999999"]


def test_what_cannot_be_reshaped_is_an_event_once_and_nothing_is_inserted(ground: Ground) -> None:
    wrong = vcjob(meta={"annotations": {GPUS: "many"}, "resourceVersion": "1"})
    for _ in range(3):
        ground.turn(wrong)
    ground.doors = ground.another()
    ground.turn(wrong)
    assert ground.store.list("jobs") == []
    ((reason, said),) = ground.kube.events()
    assert reason == "JobRefused" and "must be GPU counts" in said


def test_what_the_webhook_would_refuse_is_said_on_the_volcano_job(ground: Ground) -> None:
    job = vcjob()
    trainer(job).pop("command")
    ground.turn(job)
    ((reason, said),) = ground.kube.events()
    assert reason == "CommandRequired" and "has no `command`" in said


def test_a_corrected_one_is_let_in(ground: Ground) -> None:
    ground.turn(vcjob(meta={"annotations": {GPUS: "many"}, "resourceVersion": "1"}))
    ground.turn(vcjob(meta={"resourceVersion": "2"}))
    assert ground.job() is not None


def test_what_intake_finds_wrong_is_an_event(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.store.update("jobs", KEY, {}, {"problems": ["epochs are odd"]})
    ground.turn(vcjob())
    assert ground.kube.events() == [("JobRefused", "This job is not let in: epochs are odd.")]


@pytest.mark.parametrize("phase", [None, "Terminated"])
def test_a_deleted_or_terminated_volcano_job_is_a_cancelled_job(ground: Ground, phase: str | None) -> None:
    ground.turn(vcjob())
    ground.let_in(state="running")
    ground.turn(*([{**vcjob(), "status": {"state": {"phase": phase}}}] if phase else []))
    assert (ground.job() or {})["cancel"]


def terminated(**state: Any) -> Doc:
    return {**vcjob(), "status": {"state": {"phase": "Terminated", **state}}}


def evicted_pod() -> Pod:
    """As the API server's eviction (`kubectl drain`) marks it before its kubelet ends it."""
    said = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API"}
    evicted = pod(RUNNING, node="node-b", meta={"ownerReferences": [OWNER], "uid": "p"})
    evicted["status"]["conditions"] = [said]
    return Pod(evicted)


def cancelled_since(ground: Ground) -> str:
    job = ground.job() or {}
    assert job["cancel"] is True
    return JobRecord({"job_id": "team.train", **job}).cancel_reason


def refuse_pods(ground: Ground, ago_s: float) -> None:
    """What Volcano writes when the API server refuses a pod, in its words."""
    quota = json.dumps('pods "train-trainer-0" is forbidden: exceeded quota: one-pod, requested: pods=1')
    go = f'failed: &errors.StatusError{{ErrStatus:v1.Status{{Message:{quota}, Reason:"Forbidden"}}}}'
    about = {"involvedObject": {"uid": "1234abcd-0000"}, "lastTimestamp": event_stamp(ground.time.wall() - ago_s)}
    ground.kube.put("Event", "refused", "team", reason="FailedCreate", message=go, **about)


def test_a_job_whose_pods_are_refused_until_volcano_gives_up_ends_with_the_words_of_the_refusal(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in(state="initializing")
    refuse_pods(ground, ago_s=20)
    ground.turn(terminated())
    refused = 'pods "train-trainer-0" is forbidden: exceeded quota: one-pod, requested: pods=1'
    assert cancelled_since(ground) == f"Volcano could not make its pod and gave up: {refused}"


def test_a_job_that_is_terminated_for_an_eviction_says_who_took_its_pod(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in(state="running")
    ground.turn(vcjob(), pods=(evicted_pod(),))
    ground.turn(terminated())  # by its policy; the pod is gone by now
    why = "its pod was evicted from node node-b: Eviction API; its Volcano Job was terminated for that"
    assert cancelled_since(ground) == why


def test_what_happened_long_ago_is_not_taken_for_the_reason(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in(state="running")
    ground.turn(vcjob(), pods=(evicted_pod(),))
    refuse_pods(ground, ago_s=0)
    ground.time.at += RECENT_S + 1
    ground.turn(vcjob(), pods=(evicted_pod(),))
    ground.turn(terminated(message="by its user"))
    assert cancelled_since(ground) == "its Volcano Job was terminated: by its user"


def test_a_deleted_volcano_job_and_a_cancelled_record_are_told_apart(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in(state="running")
    ground.turn()
    assert cancelled_since(ground) == "its Volcano Job was deleted"
    assert JobRecord({"_id": "a", "cancel": True}).cancel_reason == "cancelled by the user"


def test_one_in_a_namespace_that_is_watched_no_more_is_not_cancelled(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in(state="running")
    news = EventWriter(ground.kube, ground.time, "test")
    ground.doors = VolcanoJobController(
        ground.store, ground.kube, ground.time, news, SETTINGS, 10.0, MASTER_KEY, ("other",)
    )  # type: ignore[arg-type]
    ground.turn()
    assert not (ground.job() or {}).get("cancel")


def test_one_whose_pod_was_there_before_is_left_as_it_is(ground: Ground) -> None:
    ground.turn({**vcjob(), "status": {"state": {"phase": "Running"}, "running": 1}})
    assert ground.job() is None
    assert [reason for reason, _ in ground.kube.events()] == ["TooLate"]


def test_jobs_of_records_are_not_cancelled_for_want_of_a_volcano_job(ground: Ground) -> None:
    ground.store.insert("jobs", {"_id": "a", "uid": "u", "state": "running", "closed": False})
    ground.turn()
    assert "cancel" not in (ground.job("a") or {})


def test_an_ended_job_ends_its_volcano_job_after_its_pod_had_time_to(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in(state="cancelled", closed=True)
    ground.turn(vcjob())
    assert ground.kube.of("Command") == []
    ground.time.at += 11
    for _ in range(3):
        ground.turn(vcjob())
    (command,) = ground.kube.of("Command")
    assert (command["action"], command["target"]["uid"]) == ("TerminateJob", "1234abcd-0000")
    assert command["metadata"]["namespace"] == "team"


def test_a_document_that_its_user_deleted_is_not_made_again(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.store.delete("jobs", KEY)
    ground.turn(vcjob())
    ground.time.at += 11
    ground.turn(vcjob())
    assert ground.job() is None
    assert len(ground.kube.of("Command")) == 1


def test_a_pod_that_volcano_started_unasked_pins_a_new_job_there(ground: Ground) -> None:
    owner = {"ownerReferences": [OWNER], "uid": "p"}
    there = Pod(pod(RUNNING, node="node-b", meta=owner))
    ground.turn(vcjob())
    ground.turn(vcjob(), pods=(there,))  # not let in yet
    assert (ground.job() or {}).get("pinned") is None
    ground.let_in(pinned=None, launch=0)
    ground.turn(vcjob(), pods=(there,))
    assert (ground.job() or {})["pinned"] is None  # no GPU is there: it would wait for ever
    ground.store.insert("gpus", {"_id": "g", "node": "node-b"})
    ground.turn(vcjob(), pods=(there,))
    assert (ground.job() or {})["pinned"] == "node-b"


def test_pods_of_a_gang_may_be_anywhere_and_pin_nothing(ground: Ground) -> None:
    ground.store.insert("gpus", {"_id": "g1", "node": "node-a"})
    early = Pod(pod(RUNNING, meta={"ownerReferences": [OWNER]}))
    ground.turn(gang(2))
    ground.turn(gang(2), pods=(early,))
    ground.let_in(pinned=None, launch=0, state="submitted")
    ground.turn(gang(2), pods=(early,))
    job = ground.job() or {}
    assert (job.get("pinned"), job.get("node"), job["gpus_per_pod"]) == (None, None, 1)
    assert ground.kube.events() == []


def test_a_gang_that_must_keep_its_size_is_let_in_and_its_user_is_told_once(ground: Ground) -> None:
    for _ in range(2):
        ground.turn(gang(2, policies=[{"event": "PodEvicted", "action": "RestartJob"}]))
    assert (ground.job() or {})["optional_num_gpus"] == [2]
    assert [reason for reason, _ in ground.kube.events()] == ["KeepsItsSize"]


def test_a_pod_that_volcano_started_before_its_job_was_let_in_says_where_it_is_to_run(ground: Ground) -> None:
    owner = {"ownerReferences": [OWNER], "uid": "p"}
    there = Pod(pod(RUNNING, node="node-b", meta=owner))
    ground.store.insert("gpus", {"_id": "g", "node": "node-b"})
    ground.turn(vcjob())
    ground.turn(vcjob(), pods=(there,))
    assert (ground.job() or {})["node"] == "node-b"


def test_a_job_that_was_launched_before_is_not_pinned_by_its_next_pod(ground: Ground) -> None:
    owner = {"ownerReferences": [OWNER], "uid": "p"}
    ground.turn(vcjob())
    ground.let_in(pinned=None, launch=2)
    ground.turn(vcjob(), pods=(Pod(pod(RUNNING, node="node-b", meta=owner)),))
    assert (ground.job() or {})["pinned"] is None


def test_a_job_whose_earlier_pod_does_not_go_waits_for_that(ground: Ground) -> None:
    owner = {"ownerReferences": [OWNER], "uid": "p", "name": "p"}
    stays = Pod(pod(RUNNING, node="node-b", meta={**owner, "deletionTimestamp": "2026-01-01T00:00:00Z"}))
    ground.turn(vcjob())
    ground.let_in(pinned=None, launch=1)
    ground.turn(vcjob(), pods=(stays,))
    assert (ground.job() or {})["held_back"] == "waits until its earlier pod p is gone from node node-b"
    ground.turn(vcjob())
    assert (ground.job() or {})["held_back"] is None


def test_queues_are_written_down_and_the_webhook_asks_for_the_labelled_ones(ground: Ground) -> None:
    ground.kube.put("Queue", "default", None)
    note = {"annotations": {"volcano-reshape.io/devices": "recreate"}, "labels": {"volcano-reshape.io/inject": "true"}}
    ground.kube.put("Queue", "alone", None, meta=note)
    ground.turn()
    found = {doc["_id"]: (bool(doc["inject"]), doc["devices"]) for doc in ground.store.list("queues")}
    assert found == {"alone": (True, "recreate"), "default": (False, "shared"), "reshape": (True, "shared")}
    assert ground.selected() == ["alone", "reshape"]
    calls = len(ground.kube.calls)
    ground.turn()
    assert len(ground.kube.calls) == calls  # nothing changed, nothing asked
    for name in ("alone", "reshape"):
        ground.kube.vanish("Queue", name, None)
    ground.turn()
    assert [doc["_id"] for doc in ground.store.list("queues")] == ["default"]
    assert ground.selected() == ["none.volcano-reshape"]


def test_a_selector_that_the_manifests_have_reset_is_mended(ground: Ground) -> None:
    ground.turn()
    webhook = ground.kube.of("MutatingWebhookConfiguration")[0]["webhooks"][1]
    webhook["objectSelector"]["matchExpressions"][0]["values"] = ["another"]
    ground.kube.put("MutatingWebhookConfiguration", "reshape-inject", None, webhooks=[{"name": "label"}, webhook])
    ground.time.at += 3
    ground.turn()
    assert ground.selected() == ["reshape"]


def test_a_device_mode_that_does_not_exist_is_said_on_the_queue(ground: Ground) -> None:
    ground.kube.put("Queue", "odd", None, meta={"annotations": {"volcano-reshape.io/devices": "mine"}})
    ground.turn()
    assert (ground.store.get("queues", "odd") or {})["devices"] == "shared"
    assert ground.kube.events()[0][0] == "DevicesUnknown"


@pytest.mark.parametrize(
    ("text", "weight", "events"),
    [
        ("3", 3.0, []),
        ("0", 0.0, []),
        *((odd, None, ["MakespanWeightUnknown"]) for odd in ("much", "-1", "nan", "2000")),
    ],
)
def test_a_queues_weight_of_makespan_is_read_or_said_to_be_wrong(
    ground: Ground, text: str, weight: float | None, events: list[str]
) -> None:
    ground.kube.put("Queue", "sweeps", None, meta={"annotations": {"volcano-reshape.io/makespan-weight": text}})
    ground.turn()
    assert (ground.store.get("queues", "sweeps") or {})["makespan_weight"] == weight
    assert [one[0] for one in ground.kube.events()] == events


def test_a_missing_webhook_configuration_hinders_nothing(ground: Ground) -> None:
    ground.kube.vanish("MutatingWebhookConfiguration", "reshape-inject", None)
    ground.turn(vcjob())
    assert ground.job() is not None


def test_a_volcano_job_that_we_stumble_over_hinders_no_other(ground: Ground) -> None:
    broken = vcjob(uid="0")
    broken["spec"] = []
    ground.turn(broken, vcjob())
    assert ground.job() is not None


def test_a_job_that_lives_stays_ours_when_its_queue_loses_the_label(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in()
    ground.kube.put("Queue", "reshape", None, meta={"labels": {}})
    ground.turn(vcjob())
    assert ground.selected() == ["reshape"]  # its next pod would see every GPU
    assert (ground.job() or {}).get("cancel") is None
    ground.store.update("jobs", KEY, {}, {"state": "cancelled", "closed": True})
    ground.turn(vcjob())
    ground.time.at += 11
    ground.turn(vcjob())
    assert [c["action"] for c in ground.kube.of("Command")] == ["TerminateJob"]
    assert ground.selected() == ["none.volcano-reshape"]


def test_a_watch_that_is_behind_cancels_nothing(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in()
    about = vcjob()["metadata"]
    ground.kube.put("Job", about["name"], about["namespace"], meta={"uid": about["uid"]})
    ground.turn()
    assert not (ground.job() or {}).get("cancel")
    ground.kube.put("Job", about["name"], about["namespace"], meta={"uid": "another of that name"})
    ground.turn()
    assert (ground.job() or {})["cancel"] is True


def test_a_document_that_was_not_let_in_goes_with_its_volcano_job(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.store.update("jobs", KEY, {}, {"problems": ["no checkpoint would be found"]})
    ground.turn(vcjob())
    assert ground.job() is not None
    ground.turn()
    assert ground.job() is None
    ground.turn(vcjob())
    assert (ground.job() or {})["job_id"] == "team.train"  # its name is free again


def test_a_suspended_job_waits_until_it_is_resumed(ground: Ground) -> None:
    ground.turn(vcjob())
    ground.let_in(held_back=None)
    aborted = {**vcjob(), "status": {"state": {"phase": "Aborted"}}}
    ground.turn(aborted)
    assert "until its Volcano Job is resumed" in (ground.job() or {})["held_back"]
    ground.turn(vcjob())
    assert (ground.job() or {})["held_back"] is None


# whose it is, and with what rights


def owned_by(job: Doc, user: str) -> Doc:
    """The Volcano Job as the webhook has let it in."""
    about = job["metadata"]
    notes = owner_annotations(MASTER_KEY, about["namespace"], about, user)
    return {**job, "metadata": {**about, "annotations": {**about.get("annotations", {}), **notes}}}


def test_a_job_belongs_to_who_made_its_volcano_job(ground: Ground) -> None:
    ground.turn(owned_by(vcjob(), "system:serviceaccount:team:ann"))
    assert (ground.job() or {})["owner"] == "system:serviceaccount:team:ann"


def test_a_forged_owner_gets_nothing_and_the_job_is_its_namespaces(ground: Ground) -> None:
    job = owned_by(vcjob(), "ann")
    job["metadata"]["annotations"] |= {names.OWNER: "bob"}
    ground.turn(job)
    assert (ground.job() or {})["owner"] == job["metadata"]["namespace"]


def test_an_owner_in_the_annotation_of_its_fields_is_refused(ground: Ground) -> None:
    job = vcjob()
    job["metadata"]["annotations"][MORE] = json.dumps({"owner": "bob"})
    ground.turn(job)
    assert ground.job() is None
    assert any("cannot set owner" in said for _, said in ground.kube.events())


@pytest.mark.parametrize(("value", "kept"), [(1000, 1000), (2_000_000_000, MOST_PRIORITY), (-5, -5)])
def test_the_value_of_a_priority_class_is_the_priority_among_its_owners_jobs(
    ground: Ground, value: int, kept: int
) -> None:
    ground.kube.put("PriorityClass", "urgent", None, value=value)
    job = vcjob()
    job["spec"]["priorityClassName"] = "urgent"
    ground.turn(job)
    assert (ground.job() or {})["priority"] == kept


def test_a_priority_class_of_its_pods_counts_too_and_one_that_is_not_there_does_not(ground: Ground) -> None:
    job = vcjob()
    job["spec"]["tasks"][0]["template"]["spec"]["priorityClassName"] = "gone"
    ground.turn(job)
    assert ground.job() is not None
    assert "priority" not in (ground.job() or {})


def test_a_launcher_that_may_not_read_priority_classes_lets_jobs_in(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(kind: str, name: str, namespace: str | None = None) -> Doc | None:
        if kind == "PriorityClass":
            raise Fatal("the API server refuses this account")
        return Kube.get(ground.kube, kind, name, namespace)

    monkeypatch.setattr(ground.kube, "get", get)
    job = vcjob()
    job["spec"]["priorityClassName"] = "urgent"
    ground.turn(job)
    assert "priority" not in (ground.job() or {"priority": "no job"})


@pytest.mark.parametrize(
    ("spec", "weight", "guaranteed", "limit", "reclaimable"),
    [
        ({"parent": "lab"}, 1, 0, None, True),
        ({}, 1, 0, None, True),
        ({"weight": 4, "reclaimable": False}, 4, 0, None, False),
        ({"deserved": {GPU: "2"}, "capability": {GPU: 3, "cpu": "4"}}, 1, 2, 3, True),
        ({"guarantee": {"resource": {GPU: "1"}}, "deserved": {GPU: 2}}, 1, 2, None, True),
        ({"deserved": {GPU: "8"}, "capability": {GPU: "3"}}, 1, 3, 3, True),
        ({"capability": {GPU: "0"}}, 1, 0, 0, True),
        ({"capability": {GPU: "many"}, "weight": "x", "deserved": "y", "guarantee": None}, 1, 0, None, True),
    ],
)
def test_a_queues_rights_are_written_down(
    ground: Ground, spec: Doc, weight: int, guaranteed: int, limit: int | None, reclaimable: bool
) -> None:
    ground.kube.put("Queue", "gold", None, spec=spec)
    ground.turn()
    row = ground.store.get("queues", "gold") or {}
    found = row["weight"], row["guaranteed"], row["limit"], row["reclaimable"]
    assert found == (weight, guaranteed, limit, reclaimable)
    assert row["parent"] == spec.get("parent")
