"""Pods of other kinds: none is changed, none runs or is refused without a word, and each sentence names the kind.

The pods are as the controllers make them, of which most cannot be installed here: owners and labels are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.admission import kinds
from launcher.cluster.controllers.other_kinds import OtherKinds
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.informer import Informer
from launcher.cluster.pods import placeholder_pods
from launcher.names import JOB
from tests.fakes.kube import Kube, as_api
from tests.patience import eventually
from tests.unit.launcher.test_volcano_job_controller import Time
from tests.unit.launcher.test_webhook import Desk, pod, review

Doc = dict[str, Any]

QUEUE = {"volcano.sh/queue-name": "gold"}


def owned(version: str, kind: str, name: str = "llm") -> list[Doc]:
    return [{"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-of-{name}", "controller": True}]


KINDS: dict[str, tuple[list[Doc], dict[str, str], str]] = {
    "batch Job": (
        owned("batch/v1", "Job"),
        {"batch.kubernetes.io/job-name": "llm", "job-name": "llm", "batch.kubernetes.io/controller-uid": "uid-of-llm"},
        "batch Job llm",
    ),
    "Indexed Job": (
        owned("batch/v1", "Job"),
        {"batch.kubernetes.io/job-name": "llm", "batch.kubernetes.io/job-completion-index": "3"},
        "batch Job llm",
    ),
    "CronJob": (
        owned("batch/v1", "Job", "night-29400000"),
        {"batch.kubernetes.io/job-name": "night-29400000"},
        "batch Job night-29400000",
    ),
    "JobSet": (
        owned("batch/v1", "Job", "llm-workers-0"),
        {
            "jobset.sigs.k8s.io/jobset-name": "llm",
            "jobset.sigs.k8s.io/replicatedjob-name": "workers",
            "jobset.sigs.k8s.io/job-index": "0",
            "batch.kubernetes.io/job-completion-index": "1",
        },
        "JobSet llm",
    ),
    "TrainJob": (
        owned("batch/v1", "Job", "llm-node-0"),
        {
            "jobset.sigs.k8s.io/jobset-name": "llm",
            "jobset.sigs.k8s.io/replicatedjob-name": "node",
            "trainer.kubeflow.org/trainjob-ancestor-step": "trainer",
        },
        "TrainJob llm",
    ),
    "PyTorchJob": (
        owned("kubeflow.org/v1", "PyTorchJob"),
        {
            "training.kubeflow.org/job-name": "llm",
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": "0",
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
        },
        "PyTorchJob llm",
    ),
    "MPIJob": (
        owned("kubeflow.org/v2beta1", "MPIJob"),
        {"training.kubeflow.org/job-name": "llm", "training.kubeflow.org/job-role": "worker"},
        "MPIJob llm",
    ),
    "leader of a LeaderWorkerSet": (
        owned("apps/v1", "StatefulSet"),
        {"leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/worker-index": "0", "role": "leader"},
        "LeaderWorkerSet llm",
    ),
    "worker of a LeaderWorkerSet": (
        owned("apps/v1", "StatefulSet", "llm-0"),
        {"leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/worker-index": "1"},
        "LeaderWorkerSet llm",
    ),
    "KubeRay": (
        owned("ray.io/v1", "RayCluster", "ray-x7k2p"),
        {"ray.io/cluster": "ray-x7k2p", "ray.io/node-type": "worker", "ray.io/group": "gpu"},
        "RayCluster ray-x7k2p",
    ),
    "Argo": (
        owned("argoproj.io/v1alpha1", "Workflow", "steps-abc"),
        {"workflows.argoproj.io/workflow": "steps-abc", "workflows.argoproj.io/completed": "false"},
        "Workflow steps-abc",
    ),
    "executor of Spark": (
        owned("v1", "Pod", "etl-driver"),
        {"sparkoperator.k8s.io/app-name": "etl", "spark-role": "executor", "spark-app-name": "etl"},
        "SparkApplication etl",
    ),
    "Deployment": (
        owned("apps/v1", "ReplicaSet", "notebook-hub-7d9f8b6c5d"),
        {"app": "hub", "pod-template-hash": "7d9f8b6c5d"},
        "Deployment notebook-hub",
    ),
    "StatefulSet": (
        owned("apps/v1", "StatefulSet", "serving"),
        {"apps.kubernetes.io/pod-index": "0"},
        "StatefulSet serving",
    ),
    "bare pod": ([], {"run": "debug"}, "no controller"),
}


RESHAPED = {"batch Job", "CronJob", "bare pod"}  # with our label


def made(name: str, labels: dict[str, str]) -> Doc:
    owners, own, _ = KINDS[name]
    metadata: Doc = {"name": "pod", "labels": {**own, **labels}, "annotations": {}}
    metadata["ownerReferences"] = owners
    return pod(metadata=metadata, restartPolicy="Always")


@pytest.mark.parametrize("name", KINDS)
def test_in_a_queue_of_ours_it_runs_as_it_is_and_whoever_made_it_is_told(name: str) -> None:
    desk = Desk(queues={"gold": "shared"})
    response = review(desk, made(name, QUEUE))[1]["response"]
    (said,) = response.pop("warnings")
    assert response == {"uid": "r-1", "allowed": True}
    assert f"This one belongs to {KINDS[name][2]}: it runs as it is" in said
    assert [reason for _, _, reason in desk.reports] == (["NotReshaped"] if KINDS[name][0] else [])


@pytest.mark.parametrize("name", sorted(KINDS.keys() - RESHAPED))
def test_with_our_label_it_is_refused_by_a_sentence_that_names_its_kind_and_what_to_do(name: str) -> None:
    desk = Desk()
    response = review(desk, made(name, {"volcano-reshape.io/inject": "true"}))[1]["response"]
    said = response["status"]["message"]
    assert not response["allowed"]
    assert f"it belongs to {KINDS[name][2]}, and only pods of Volcano Jobs, of batch Jobs with one pod" in said
    assert "take the label away" in said
    assert [reason for _, _, reason in desk.reports] == (["InjectionRefused"] if KINDS[name][0] else [])


@pytest.mark.parametrize("name", KINDS)
def test_without_queue_and_label_nobody_hears_of_us(name: str) -> None:
    desk = Desk()
    assert review(desk, made(name, {"volcano.sh/queue-name": "others"}))[1]["response"] == {
        "uid": "r-1",
        "allowed": True,
    }
    assert review(desk, made(name, {}))[1]["response"] == {"uid": "r-1", "allowed": True}
    assert desk.reports == []


# those that the webhook never sees


def group(uid: str, owners: list[Doc], queue: str = "gold", phase: str = "Running") -> Doc:
    """Return a PodGroup as Volcano makes one for each owner of pods that it schedules."""
    meta = {"name": f"podgroup-{uid}", "namespace": "team", "uid": uid, "ownerReferences": owners}
    return {"metadata": meta, "spec": {"queue": queue, "minMember": 1}, "status": {"phase": phase}}


def told(kube: Kube) -> list[tuple[str, str]]:
    return [(event["involvedObject"]["kind"], event["involvedObject"]["uid"]) for event in kube.of("Event")]


class Groups:
    """PodGroups of a cluster, and who tells their owners."""

    def __init__(self, *groups: Doc) -> None:
        self.kube = Kube()
        for each in groups:
            self.put(each)
        shortened = placeholder_pods.shortened_group
        self.informer = Informer(as_api(self.kube), "PodGroup", None, None, lambda: None, shortened)
        self.controller = OtherKinds(as_api(self.kube), EventWriter(as_api(self.kube), Time(), "test"), [self.informer])
        self.informer.start()
        eventually(lambda: self.informer.in_step and self.kube._watches)

    def put(self, group: Doc) -> None:
        meta = dict(group["metadata"])
        self.kube.put(
            "PodGroup", meta.pop("name"), meta.pop("namespace"), meta=meta, spec=group["spec"], status=group["status"]
        )


@pytest.fixture
def groups() -> Iterator[Callable[..., Groups]]:
    made: list[Groups] = []

    def make(*each: Doc) -> Groups:
        made.append(Groups(*each))
        return made[-1]

    yield make
    for one in made:
        one.informer.stop()
        one.put(group("last", []))  # ends its watch


def test_each_owner_of_a_pod_group_in_a_queue_of_ours_is_told_once(groups: Callable[..., Groups]) -> None:
    ours = owned("batch.volcano.sh/v1alpha1", "Job", "train")
    made = groups(
        group("1", owned("batch/v1", "Job")),
        group("2", owned("kubeflow.org/v1", "PyTorchJob", "bert")),
        group("3", ours),
        group("4", owned("apps/v1", "ReplicaSet", "hub-7d9f"), queue="default"),
        group("5", owned("batch/v1", "Job", "over"), phase="Completed"),
        group("6", owned("v1", "Pod", "debug")),
        group("7", []),
    )
    for _ in range(2):
        made.controller.turn(["gold"])
    assert told(made.kube) == [("Job", "uid-of-llm"), ("PyTorchJob", "uid-of-bert"), ("Pod", "uid-of-debug")]
    assert {reason for reason, _ in made.kube.events()} == {"NotReshaped"}
    made.controller.turn(["gold", "default"])
    assert told(made.kube)[3:] == [("ReplicaSet", "uid-of-hub-7d9f")]


def test_those_that_asked_to_be_reshaped_are_not_told_otherwise(groups: Callable[..., Groups]) -> None:
    made = groups(
        group("1", owned("batch/v1", "Job")),
        group("2", owned("v1", "Pod", "mine")),
        group("3", owned("v1", "Pod", "other")),
    )
    made.kube.put("BatchJob", "llm", "team", meta={"labels": {JOB: "waits"}})
    made.kube.put("Pod", "mine", "team", meta={"labels": {JOB: "j-abc"}})
    made.kube.put("Pod", "other", "team")
    made.controller.turn(["gold"])
    assert told(made.kube) == [("Pod", "uid-of-other")]


def test_the_api_server_is_not_asked_about_those_that_are_known_to_be_reshaped(groups: Callable[..., Groups]) -> None:
    made = groups(group("1", owned("batch/v1", "Job")), group("2", owned("v1", "Pod", "other")))
    made.controller.turn(["gold"], {"uid-of-llm"})
    assert told(made.kube) == [("Pod", "uid-of-other")]
    assert [call for call in made.kube.calls if call[0] == "get"] == [("get", "Pod", "other")]


def test_a_group_is_looked_at_once_however_often_the_launcher_turns(
    groups: Callable[..., Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = groups(*(group(str(n), owned("batch/v1", "Job")) for n in range(100)))
    looked: list[str] = []
    monkeypatch.setattr(made.controller, "_look", lambda group, reshaped: looked.append(group["metadata"]["uid"]))
    made.controller.turn(["gold"])
    made.controller.turn(["gold"])
    made.put(group("7", owned("batch/v1", "Job"), phase="Pending"))
    made.put(group("new", []))
    eventually(lambda: made.controller.turn(["gold"]) or "new" in looked)
    assert sorted(looked) == sorted([*map(str, range(100)), "new"])


def test_a_pod_whose_owners_are_many_is_named_after_the_one_that_controls_it() -> None:
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a"}, *owned("apps/v1", "StatefulSet", "serving")]
    assert kinds.whose(owners) == "StatefulSet serving"
