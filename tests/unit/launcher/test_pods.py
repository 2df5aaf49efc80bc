"""What a Pod object proves: when a trainer has certainly ended, and why one does not come up."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.cluster.pods.pod_state import Pod

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED = {"terminated": {"exitCode": 0, "reason": "Completed"}}
LOST = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
WAITING = {"waiting": {"reason": "PodInitializing"}}


def pod(
    state: dict[str, Any] | None = None, phase: str = "Running", node: str | None = "node-a", **more: Any
) -> dict[str, Any]:
    statuses = [{"name": "trainer", "state": state}] if state is not None else []
    status = {"phase": phase, "containerStatuses": statuses, **more.pop("status", {})}
    meta = {"name": "p", "namespace": "default", "uid": "u", **more.pop("meta", {})}
    spec = {"containers": [{"name": "trainer"}], "restartPolicy": "Never", **more}
    return {"metadata": meta, "spec": spec | ({"nodeName": node} if node else {}), "status": status}


@pytest.mark.parametrize(
    ("seen", "ended"),
    [
        (Pod(pod(RUNNING)), False),
        (Pod(pod(ENDED)), True),
        (Pod(pod(ENDED, restartPolicy="OnFailure")), False),  # the kubelet starts it again
        (Pod(pod(ENDED, restartPolicy="OnFailure", meta={"deletionTimestamp": "now"})), True),
        (Pod(pod(ENDED, "Failed", restartPolicy="OnFailure")), True),
        (Pod(pod(LOST)), False),  # no trace of it was found: no proof
        (Pod(pod(LOST, "Failed")), True),  # the kubelet looked, and ended the pod
        (Pod(pod(WAITING, "Failed")), True),  # it never began
        (Pod(pod(RUNNING, "Failed")), False),  # somebody else said so
        (Pod(pod(None, "Failed", status={"conditions": [{"reason": "DeletionByPodGC"}]})), False),
        (Pod(pod(None, "Failed", status={"reason": "OutOfcpu"})), True),  # its kubelet refused it
        (Pod(pod(RUNNING), deleted=True), False),  # deleted by force
        (Pod(pod(None, "Pending", node=None), deleted=True), True),  # it never had a node
        (Pod(pod(None, "Pending", node=None), deleted=True, sure=False), False),  # as far as was seen
    ],
)
def test_only_the_kubelet_proves_that_a_trainer_has_ended(seen: Pod, ended: bool) -> None:
    assert seen.ended is ended


def test_the_container_that_trains_may_be_named() -> None:
    doc = pod(RUNNING, meta={"annotations": {"volcano-reshape.io/container": "main"}})
    doc["spec"]["containers"] += [{"name": "main"}]
    doc["status"]["containerStatuses"] += [{"name": "main", "state": ENDED}]
    assert Pod(doc).ended


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (RUNNING, None),
        ({"waiting": {"reason": "ContainerCreating"}}, None),
        ({"waiting": {"reason": "ErrImagePull"}}, None),  # the next try may succeed
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image x"}},
            "its container trainer does not start: Back-off pulling image x",
        ),
        (
            {"terminated": {"exitCode": 128, "reason": "StartError", "message": 'exec: "python3": not found'}},
            'its container trainer could not be started: exec: "python3": not found '
            "(the image needs python3, 3.8 or newer, on its PATH)",
        ),
        ({"terminated": {"exitCode": 3}}, "its container trainer ended with exit code 3"),
        (ENDED, "its container trainer has ended"),
    ],
)
def test_why_it_does_not_come_up_is_a_sentence(state: dict[str, Any], said: str | None) -> None:
    assert Pod(pod(state)).trouble == said


@pytest.mark.parametrize("container", ["reshape-init", "reshape-sidecar"])
def test_where_our_image_cannot_be_pulled_it_says_whose_it_is_and_what_to_do(container: str) -> None:
    doc = pod(None, "Pending")
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry/ours:1"'}}
    doc["status"]["initContainerStatuses"] = [{"name": container, "state": waits}]
    said = str(Pod(doc).trouble)
    assert said.startswith(f'its container {container} does not start: Back-off pulling image "registry/ours:1" (it is')
    assert "imagePullSecrets" in said


def test_how_a_sidecar_ends_is_no_trouble_but_how_an_init_container_does_is() -> None:
    doc = pod(RUNNING, initContainers=[{"name": "beside", "restartPolicy": "Always"}, {"name": "before"}])
    killed = {"terminated": {"exitCode": 137}}
    doc["status"]["initContainerStatuses"] = [{"name": "beside", "state": killed}]
    assert Pod(doc).trouble is None
    doc["status"]["initContainerStatuses"] += [{"name": "before", "state": killed}]
    assert Pod(doc).trouble == "its container before ended with exit code 137"


def test_a_node_that_refuses_a_pod_is_named() -> None:
    doc = pod(None, "Failed", status={"reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"})
    assert Pod(doc).trouble == "node node-a refused its pod: Node didn't have enough resource: cpu"


def test_a_strange_object_proves_nothing() -> None:
    assert not Pod({}).ended
    assert Pod({"metadata": {"name": "x"}, "status": {"phase": None}}).trouble is None


def test_which_gpus_a_pod_was_made_for() -> None:
    named = pod(RUNNING)
    named["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "b,a"}]
    assert Pod(named).holds(["a", "b"])
    assert not Pod(named).holds(["a"])
    named["spec"]["containers"][0]["env"][0]["value"] = "void"
    assert Pod(named).holds([]) and not Pod(named).holds(["a"])
    counted = pod(RUNNING)
    counted["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    assert Pod(counted).holds(["c", "d"])
    assert not Pod(counted).holds(["c"])


CLAIMED = {"persistentVolumeClaim": {"claimName": "data"}}


@pytest.mark.parametrize("name", ["reshape-dataset", "their-own"])
@pytest.mark.parametrize(("volume", "said"), [({"emptyDir": {}}, "name a PersistentVolumeClaim"), (CLAIMED, "goes on")])
def test_a_pod_whose_data_set_is_fetched_is_waited_for_and_one_that_cannot_be_says_why(
    volume: dict[str, Any], said: str, name: str
) -> None:
    def fetching(state: dict[str, Any]) -> Pod:
        about = [{"name": "reshape-dataset", "state": state}]
        return Pod(
            pod(
                None,
                "Pending",
                volumes=[{"name": name, **volume}],
                containers=[{"name": "main", "volumeMounts": [{"name": name, "mountPath": "/dataset"}]}],
                status={"initContainerStatuses": about},
            )
        )

    waits = fetching(RUNNING)
    assert waits.trouble is None and said in (waits.unplaced or "")
    why = "https://data.example/x cannot be fetched: its server answered 404 (Not Found)"
    failed = fetching({"terminated": {"exitCode": 1, "message": why}})
    assert failed.trouble == f"its container reshape-dataset ended with exit code 1: {why}"
    assert failed.unplaced is None


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "its pod was evicted from node node-a: The node was low on resource: memory.",
        ),
        (
            {
                "phase": "Failed",
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "more"}
                ],
            },
            "its pod was evicted from node node-a: more",
        ),
    ],
)
def test_an_evicted_pod_says_why_it_was_and_not_that_its_container_ended(status: dict[str, Any], sentence: str) -> None:
    assert Pod(pod({"terminated": {"exitCode": 137}}, status=status)).trouble == sentence


@pytest.mark.parametrize("kind", ["batch/v1", "training.example.org/v1"])
def test_only_volcanos_own_jobs_are_taken_for_one(kind: str) -> None:
    owners = [{"apiVersion": kind, "kind": "Job", "uid": "theirs"}]
    assert Pod(pod(RUNNING, meta={"ownerReferences": owners})).owner is None
    own = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "uid": "ours"}
    assert Pod(pod(RUNNING, meta={"ownerReferences": [*owners, own]})).owner == "ours"
