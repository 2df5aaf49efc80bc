"""What a job of a record is on a cluster is decided in one pure function."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from coordinator.errors import Rejected
from launcher.admission.inject import PodSettings, node_of
from launcher.cluster.pods.job_spec import launch_secret, objects
from launcher.names import LAUNCH, launch_name
from sidecar.config import LaunchFile
from sidecar.protocol import launch_key, launch_token

MASTER = b"m" * 64
SETTINGS = PodSettings(image="ours:1", coordinator="http://c:8080")
DOC: dict[str, Any] = {
    "_id": 1, "job_id": "train", "uid": "u1", "launch": 2, "command": ["python", "t.py"], "image": "theirs:1",
    "node": "node-a", "gpu_ids": ["A", "B"], "optional_num_gpus": [1, 2],
}  # fmt: skip
NAME = launch_name("train", "u1", 2)
SIDECAR_POD = {"metadata": {"annotations": {LAUNCH: "p-1"}}, "spec": {"initContainers": [{"name": "reshape-sidecar"}]}}


def made(
    settings: PodSettings = SETTINGS, emulated: bool = True, **changes: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    return objects(DOC | changes, settings, MASTER, emulated)


def told(secret: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(base64.b64decode(secret["data"]["launch.json"]))
    return spec


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["tasks"][0]["template"]["spec"]
    return spec


def test_the_same_launch_is_the_same_objects_for_ever() -> None:
    assert made() == made()
    assert [one["metadata"]["name"] for one in made()] == [NAME, NAME]
    assert [one["metadata"]["name"] for one in made(launch=3)] == [launch_name("train", "u1", 3)] * 2


@pytest.mark.parametrize(
    ("wait_s", "kind", "text"),
    [(6.2, "start", "7s"), (600, "start", "600s"), (None, "start", None), (9, "restart", None)],
)
def test_volcano_is_told_how_long_a_job_with_a_deadline_may_wait(
    wait_s: float | None, kind: str, text: str | None
) -> None:
    _, job = made(sla_waiting_s=wait_s, reshape={"kind": kind, "to": []})
    assert job["metadata"].get("annotations", {}).get("volcano.sh/sla-waiting-time") == text


def test_a_gang_is_one_volcano_job_whose_pods_the_webhook_injects() -> None:
    doc = {"gpus_per_pod": 2, "gpu_ids": ["A", "B", "C", "D"], "pod": {"containers": [{"name": "main"}]}}
    secret, job = objects(DOC | doc, SETTINGS, MASTER, True)
    assert secret is None  # each pod gets its own
    (task,) = job["spec"]["tasks"]
    assert (task["replicas"], task["minAvailable"], job["spec"]["minAvailable"]) == (2, 2, 2)
    # A pod that a gang gives back is an evicted one for Volcano.
    assert [one["event"] for one in job["spec"]["policies"]] == ["TaskCompleted"]
    meta, spec = task["template"]["metadata"], task["template"]["spec"]
    assert meta["labels"]["volcano-reshape.io/inject"] == "true"
    assert meta["labels"]["volcano-reshape.io/job"] == job["metadata"]["labels"]["volcano-reshape.io/job"]
    assert meta["annotations"] == {"volcano-reshape.io/job-id": "train"}
    assert spec["containers"][0]["command"] == ["python", "t.py"] and "initContainers" not in spec
    assert node_of(spec) is None


def test_each_pod_of_a_gang_is_told_which_one_it_is() -> None:
    pod = {**SIDECAR_POD, "metadata": {"annotations": {LAUNCH: "p-1"}, "uid": "pod-uid", "name": "p", "namespace": "n"}}
    doc = DOC | {"gpus_per_pod": 1, "devices": "recreate"}
    spec = told(launch_secret(doc, pod, SETTINGS, MASTER, True, 1))
    assert (spec["member"], spec["pod_uid"], spec["visible_gpus"]) == (1, "pod-uid", ["B"])


def test_volcano_ends_a_launch_and_never_starts_one_again() -> None:
    _, job = made()
    spec = job["spec"]
    assert (spec["minAvailable"], spec["queue"], spec["schedulerName"]) == (1, "default", "volcano")
    assert {one["event"]: one["action"] for one in spec["policies"]} == {
        "PodEvicted": "TerminateJob",
        "PodFailed": "TerminateJob",
        "TaskCompleted": "CompleteJob",
    }
    assert pod_of(job)["restartPolicy"] == "Never" and spec["tasks"][0]["replicas"] == 1


def test_the_pod_runs_the_records_command_in_its_image_on_the_decided_node() -> None:
    pod = pod_of(made(env={"A": "1"}, code="/code", resources={"cores": 1.5, "memory": 1 << 30})[1])
    trainer = pod["containers"][0]
    assert (trainer["image"], trainer["command"][-2:], trainer["workingDir"]) == (
        "theirs:1",
        ["python", "t.py"],
        "/code",
    )
    assert {"name": "A", "value": "1"} in trainer["env"]
    assert trainer["resources"]["requests"] == {"cpu": "1500m", "memory": "1073741824"}
    assert node_of(pod) == "node-a"


def test_kubernetes_does_not_delete_the_pod_of_a_node_that_is_out_of_reach_unless_its_record_says_so() -> None:
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}
    for_ever = {"operator": "Exists", "effect": "NoExecute"}
    assert pod_of(made()[1])["tolerations"] == [
        {"key": "node.kubernetes.io/not-ready", **for_ever},
        {"key": "node.kubernetes.io/unreachable", **for_ever},
    ]
    added = pod_of(made(pod={"tolerations": [own]})[1])["tolerations"]
    assert added == [own, {"key": "node.kubernetes.io/not-ready", **for_ever}]
    assert pod_of(made(pod={"tolerations": [{"operator": "Exists"}]})[1])["tolerations"] == [{"operator": "Exists"}]
    elsewhere = {"operator": "Exists", "effect": "NoSchedule"}
    assert len(pod_of(made(pod={"tolerations": [elsewhere]})[1])["tolerations"]) == 3, "it says nothing of deletion"


def test_a_text_is_run_by_the_shell() -> None:
    assert pod_of(made(command="python t.py && date")[1])["containers"][0]["command"][-3:] == [
        "sh",
        "-c",
        "python t.py && date",
    ]


def test_secret_and_pod_belong_together() -> None:
    secret, job = made()
    assert pod_of(job)["volumes"][1]["secret"]["secretName"] == secret["metadata"]["name"]
    template = job["spec"]["tasks"][0]["template"]["metadata"]
    assert template["annotations"][LAUNCH] == secret["metadata"]["name"]
    assert base64.b64decode(secret["data"]["launch.key"]) == launch_key(MASTER, "u1", 2)
    assert base64.b64decode(secret["data"]["operator.token"]) == launch_token(MASTER, "u1", 2)
    assert launch_token(MASTER, "u1", 2) not in (launch_token(MASTER, "u1", 3), launch_key(MASTER, "u1", 2), MASTER)


def test_no_secret_outside_the_secret() -> None:
    secret, job = made()
    secrets = launch_token(MASTER, "u1", 2), launch_key(MASTER, "u1", 2), MASTER
    assert not any(one.decode() in f"{job} {told(secret)}" for one in secrets), (
        "nor in what the trainer's container sees"
    )


def test_what_shim_and_sidecar_are_told_is_what_they_can_read() -> None:
    spec = told(made(progress_pattern=r"it (?P<iteration>\d+)", emulated_speed={"1": 0.5}, dataset="/data")[0])
    read = msgspec.convert(spec, LaunchFile)
    assert (read.pod, read.sidecar, read.port, read.gpus) == (True, None, 8477, "emulated")
    assert (read.job_id, read.launch, read.output) == ("train", 2, "/reshape/checkpoints/.output/output.log")
    assert read.progress is not None and read.progress.pattern == r"it (?P<iteration>\d+)"
    assert spec["env"] == {
        "RESHAPE_CHECKPOINTS": "/reshape/checkpoints",
        "RESHAPE_DATASET": "/data",
        "RESHAPE_EMULATED_SPEED": '{"1": 0.5}',
    }
    assert spec["workdir"] is None and spec["tee"] is True


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"optional_num_gpus": [0]}, "0"),
        ({"optional_num_gpus": [0], "env": {"RESHAPE_WARM": "2"}}, "2"),
        ({"env": {"RESHAPE_WARM": "0"}}, "0"),
    ],
)
def test_no_interpreter_waits_beside_a_training_on_cpu_unless_its_user_says_so(
    changes: dict[str, Any], said: str | None
) -> None:
    secret, _ = made(**changes)
    assert told(secret)["env"].get("RESHAPE_WARM") == said


@pytest.mark.parametrize(
    ("dataset", "found"), [(None, "/dataset"), ("2012/train", "/dataset/2012/train"), ("/data", "/data")]
)
def test_a_data_set_on_a_claim_is_mounted_to_be_read_and_the_training_told_where(
    dataset: str | None, found: str
) -> None:
    own = {"volumes": [{"name": "v"}], "containers": [{"volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}
    secret, job = made(dataset_claim="imagenet", dataset=dataset, pod=own)
    volume = {"name": "reshape-dataset", "persistentVolumeClaim": {"claimName": "imagenet"}}
    mount = {"name": "reshape-dataset", "mountPath": "/dataset", "readOnly": True}
    pod = pod_of(job)
    assert pod["volumes"][:2] == [{"name": "v"}, volume]
    assert pod["containers"][0]["volumeMounts"][:2] == [{"name": "v", "mountPath": "/v"}, mount]
    assert told(secret)["env"]["RESHAPE_DATASET"] == found


def test_a_pod_that_mounts_the_claim_of_its_data_set_itself_has_one_volume_of_it() -> None:
    theirs = {"name": "all", "persistentVolumeClaim": {"claimName": "shared"}}
    pod = pod_of(made(dataset_claim="shared", checkpoint_claim="shared", pod={"volumes": [theirs]})[1])
    assert [each for each in pod["volumes"] if "persistentVolumeClaim" in each] == [theirs]
    mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["/dataset"] == {"name": "all", "mountPath": "/dataset", "readOnly": True}
    assert mounts["/reshape/checkpoints"]["name"] == "all"


ADDRESS = "https://data.example/sets/digits.npz?sig=a$(b)"


@pytest.mark.parametrize("claim", [None, "imagenet"])
@pytest.mark.parametrize("gang", [{}, {"gpus_per_pod": 1, "checkpoint_claim": "shared"}])
def test_a_data_set_with_an_address_is_fetched_before_the_training_starts(
    claim: str | None, gang: dict[str, Any]
) -> None:
    job = made(dataset=ADDRESS, dataset_claim=claim, dataset_sha256="0" * 64, **gang)[1]
    pod, mount = pod_of(job), {"name": "reshape-dataset", "mountPath": "/dataset"}
    volume = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    assert pod["volumes"][0] == {"name": "reshape-dataset", **volume}
    assert pod["containers"][0]["volumeMounts"][0] == {**mount, "readOnly": True}
    init = pod["initContainers"][0]
    assert (init["name"], init["image"], init["volumeMounts"]) == ("reshape-dataset", "ours:1", [mount])
    assert init["env"] == [
        {"name": "RESHAPE_FETCH", "value": "https://data.example/sets/digits.npz?sig=a$$(b)"},
        {"name": "RESHAPE_FETCH_SHA256", "value": "0" * 64},
    ]
    file = init["command"][-1]
    assert file.startswith("/dataset/") and file.endswith("/digits.npz")
    assert init["command"][1:] == ["-I", "-m", "sidecar.startup.fetch", "--to", file]
    assert init["securityContext"]["readOnlyRootFilesystem"] is True
    secret = launch_secret(DOC | {"dataset": ADDRESS, "dataset_sha256": "0" * 64}, SIDECAR_POD, SETTINGS, MASTER, True)
    assert told(secret)["env"]["RESHAPE_DATASET"] == file


def test_a_pod_that_owns_its_cores_keeps_them_with_a_data_set_to_fetch() -> None:
    whole = {"cpu": "1", "memory": "1Gi"}
    own = {"containers": [{"resources": {"limits": whole, "requests": whole}}]}
    for one in pod_of(made(dataset=ADDRESS, pod=own)[1])["initContainers"]:
        assert one["resources"]["limits"] == one["resources"]["requests"]


def test_in_shared_mode_a_launch_may_use_any_gpu_of_its_node() -> None:
    spec = told(made(emulated=False)[0])
    assert (spec["visible_gpus"], spec["device_plugin"], spec["gpus"]) == (None, False, "nvml")


def test_in_recreate_mode_a_launch_has_the_granted_gpus_and_no_others() -> None:
    secret, job = made(emulated=False, devices="recreate")
    spec = told(secret)
    assert (spec["visible_gpus"], spec["device_plugin"], spec["gpus"]) == (["A", "B"], True, "none")
    assert pod_of(job)["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert told(made(devices="recreate")[0])["device_plugin"] is False, "nobody chooses among emulated ones"


def test_namespace_and_queue_are_the_records_or_the_settings() -> None:
    assert {one["metadata"]["namespace"] for one in made()} == {"default"}
    secret, job = made(namespace="team", queue="gold")
    assert (secret["metadata"]["namespace"], job["metadata"]["namespace"], job["spec"]["queue"]) == (
        "team",
        "team",
        "gold",
    )
    other = PodSettings(image="i", coordinator="c", namespace="n", queue="q")
    assert (made(other)[1]["metadata"]["namespace"], made(other)[1]["spec"]["queue"]) == ("n", "q")


def test_a_pod_may_be_a_text() -> None:
    assert pod_of(made(pod='{"nodeSelector": {"a/b.c": "d"}}')[1])["nodeSelector"]["a/b.c"] == "d"


def test_a_record_may_add_to_its_pod_but_not_change_what_it_says_itself() -> None:
    theirs = {
        "tolerations": [{"operator": "Exists"}],
        "restartPolicy": "Always",
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [
            {"name": "x", "image": "y", "command": ["z"], "args": ["a"], "env": [{"name": "A", "value": "0"}],
             "volumeMounts": [{"name": "data", "mountPath": "/data"}], "resources": {"limits": {"memory": "1Gi"}}}
        ],
    }  # fmt: skip
    pod = pod_of(made(pod=theirs, env={"A": "1"}, resources={"cores": 1})[1])
    trainer = pod["containers"][0]
    assert pod["tolerations"] == [{"operator": "Exists"}] and pod["restartPolicy"] == "Never"
    assert (trainer["name"], trainer["image"], trainer["command"][-1]) == ("trainer", "theirs:1", "t.py")
    assert "args" not in trainer and {"name": "data", "mountPath": "/data"} in trainer["volumeMounts"]
    assert [one for one in trainer["env"] if one["name"] == "A"] == [{"name": "A", "value": "1"}]
    assert trainer["resources"] == {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1000m"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": None}, "image is missing"),
        ({"pod": {"containers": [{}, {}]}}, "pod.containers"),
        ({"progress_file": "progress.json"}, "below /reshape"),
        ({"pod": {"hostPID": True}}, "hostPID"),
    ],
)
def test_what_cannot_be_a_pod_is_refused_with_a_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Rejected, match=words):
        made(**changes)


def test_an_image_that_carries_everything_has_one_container_and_starts_its_sidecar() -> None:
    secret, job = made(single_container=True, progress_file="progress.json")
    assert "initContainers" not in pod_of(job)
    assert told(secret)["sidecar"][1:4] == ["-I", "-m", "sidecar"] and told(secret)["pod"] is True


def test_the_secret_of_a_users_pod_is_named_by_the_pod_and_goes_with_it() -> None:
    pod = {**SIDECAR_POD, "metadata": {**SIDECAR_POD["metadata"], "name": "p", "uid": "pod-uid", "namespace": "team"}}
    secret = launch_secret(DOC, pod, SETTINGS, MASTER, True)
    about = secret["metadata"]
    assert (about["name"], about["namespace"]) == ("p-1", "team")
    assert about["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-uid"}]
    assert told(secret)["sidecar"] is None


def test_in_the_hosts_network_the_sidecar_takes_any_port() -> None:
    pod = {**SIDECAR_POD, "spec": {**SIDECAR_POD["spec"], "hostNetwork": True}}
    assert told(launch_secret(DOC, pod, SETTINGS, MASTER, True))["port"] == 0


def test_a_pods_name_is_one_that_volcano_takes() -> None:
    longest = launch_name("x" * 200, "u", 10**10 - 1)
    assert len(f"{longest}-trainer-0") <= 63
