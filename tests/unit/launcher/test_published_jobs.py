"""Volcano Jobs that people publish, in a queue of ours: each comes in, or is told in true words why it does not start.

Shortened from Volcano's own examples and user guides to what matters here: tasks, plugins, policies, devices, commands.
"""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import Rejected
from launcher.admission.inject import Injection, PodSettings, inject
from launcher.cluster.controllers import volcano_job_document
from launcher.names import CONTAINER

Doc = dict[str, Any]

SETTINGS = PodSettings("ours:1", "http://c:8080")


def task(name: str, replicas: int, command: list[str] | None, restart: str = "OnFailure", **container: Any) -> Doc:
    about = {"name": name, "image": f"example/{name}", **container, **({"command": command} if command else {})}
    return {"name": name, "replicas": replicas, "template": {"spec": {"restartPolicy": restart, "containers": [about]}}}


def job(*tasks: Doc, gpus: str | None = "1,2", **spec: Any) -> Doc:
    meta = {"name": "published", "namespace": "team", "uid": "1234abcd-0", "annotations": {}}
    if gpus is not None:
        meta["annotations"] = {volcano_job_document.GPUS: gpus}
    about = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": meta}
    return {**about, "spec": {"tasks": [*tasks], **spec}}


def one_pod(container: Doc | None = None, **pod: Any) -> Doc:
    """One pod that trains, with these fields of its container and of its spec."""
    made = job(task("train", 1, SHELL, **(container or {})))
    made["spec"]["tasks"][0]["template"]["spec"] |= pod
    return made


def asking(*devices: str) -> Doc:
    """One pod that trains and asks for one of each of these devices."""
    return job(task("train", 1, SHELL, resources={"limits": dict.fromkeys(devices, "1")}))


SHELL = ["/bin/sh", "-c", "python /code/train.py"]
BESIDE = {"name": "sync", "image": "example/sync", "command": ["sleep", "inf"]}
CLAIM = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
KEPT = {"imagePullSecrets", "hostNetwork", "dnsPolicy", "priorityClassName", "restartPolicy"}
TWO_TASKS = "it has 2 tasks, and a job that is reshaped has one.*take a queue without the label"

REFUSED: dict[str, tuple[Doc, str]] = {
    "PyTorch, by Volcano's plugin": (
        job(task("master", 1, SHELL), task("worker", 2, SHELL), plugins={"pytorch": ["--master=master"]}),
        TWO_TASKS,
    ),
    "TensorFlow, servers and workers": (job(task("ps", 2, SHELL), task("worker", 4, SHELL)), TWO_TASKS),
    "MPI": (job(task("mpimaster", 1, SHELL), task("mpiworker", 2, SHELL), plugins={"ssh": []}), TWO_TASKS),
    "Horovod": (job(task("master", 1, SHELL), task("worker", 3, SHELL), plugins={"ssh": [], "svc": []}), TWO_TASKS),
    "PaddlePaddle": (job(task("pserver", 2, SHELL), task("trainer", 2, SHELL)), TWO_TASKS),
    "MXNet, whose images start by themselves": (
        job(task("worker", 2, None), task("server", 2, None), task("scheduler", 1, None)),
        "Container 'worker' has no `command`",
    ),
    "MindSpore on GPUs, by MPI": (
        job(task("mpimaster", 1, SHELL), task("mpiworker", 2, SHELL, resources={"limits": {"nvidia.com/gpu": 1}})),
        "asks for nvidia.com/gpu, which jobs of this queue share",
    ),
    "tasks that start one after another": (
        job(task("first", 1, SHELL), {**task("then", 5, SHELL), "dependsOn": {"name": ["first"]}}),
        TWO_TASKS,
    ),
    "an elastic one of Volcano, without restart policies": (
        job(task("worker", 9, SHELL, restart="Always"), task("master", 1, SHELL), minAvailable=3),
        "restartPolicy is Always",
    ),
    "MindSpore on GPUs": (asking("nvidia.com/gpu"), "asks for nvidia.com/gpu, which jobs of this queue share"),
    "MindSpore on CPU with eight pods": (
        job(task("pod", 8, SHELL)),
        "8 pods with 1 GPU each, which is 8 GPUs, but the annotation",
    ),
    "nginx, as in the first example": (job(task("nginx", 6, None)), "has no `command`"),
    "one without a restart policy": (job(task("train", 1, SHELL, restart="Always")), "restartPolicy is Always"),
    "one that does not say its counts": (job(task("train", 1, SHELL), gpus=None), 'such as "1,2,4"'),
    "a pod that names its node": (one_pod(nodeName="node-a"), "names its node in nodeName, past the scheduler"),
    "hostNetwork as most write it": (one_pod(hostNetwork=True), "write dnsPolicy: ClusterFirstWithHostNet"),
    "hostPID, for profilers": (one_pod(hostPID=True), "hostPID must not be set"),
    "a second container": (
        one_pod(containers=[BESIDE, {"name": "train", "image": "i", "command": SHELL}]),
        "has 2 containers: write the name of the one that trains into the annotation",
    ),
    "a claim for a GPU (DRA)": (
        one_pod({"resources": {"claims": [{"name": "gpu"}]}}, resourceClaims=CLAIM),
        "asks for devices by a ResourceClaim",
    ),
    "time slices": (asking("nvidia.com/gpu.shared"), "asks for nvidia.com/gpu.shared"),
    "HAMi's vGPU": (asking("nvidia.com/gpumem", "nvidia.com/gpucores"), "asks for nvidia.com/gpucores"),
    "Huawei's Ascend": (asking("huawei.com/Ascend910"), "asks for huawei.com/Ascend910"),
    "MIG": (asking("nvidia.com/mig-1g.10gb"), "asks for nvidia.com/mig-1g.10gb"),
    "AMD": (asking("amd.com/gpu"), "asks for amd.com/gpu"),
    "Volcano's vGPU": (asking("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"), "asks for volcano.sh/vgpu-memory"),
}

LET_IN: dict[str, Doc] = {
    "one pod with a policy for its end": job(
        task("train", 1, SHELL), policies=[{"event": "TaskCompleted", "action": "CompleteJob"}], minAvailable=1
    ),
    "two equal pods": job(task("worker", 2, SHELL), gpus="2"),
    "one with a network of its own and plugins": job(
        task("train", 1, SHELL), plugins={"svc": [], "env": [], "ssh": []}
    ),
    "PyTorch's plugin around one task": job(task("master", 1, SHELL), plugins={"pytorch": ["--master=master"]}),
    "policies that restart after a drain": job(
        task("train", 1, SHELL),
        policies=[{"event": "PodEvicted", "action": "RestartTask"}, {"event": "PodFailed", "action": "RestartJob"}],
    ),
    "secrets for its registry": one_pod(imagePullSecrets=[{"name": "registry"}]),
    "hostNetwork with names of Services": one_pod(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet"),
    "code below a folder of a claim": one_pod(
        {"volumeMounts": [{"name": "data", "mountPath": "/code", "subPath": "team/code"}]},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    ),
    "a larger /dev/shm and a priority": one_pod(
        {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]},
        volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        priorityClassName="high",
    ),
    "init containers, a hook before its end and no rights": one_pod(
        {"lifecycle": {"preStop": {"exec": {"command": ["sync"]}}}, "securityContext": {"runAsNonRoot": True}},
        initContainers=[BESIDE],
    ),
    "a second container, with the first named": one_pod(
        containers=[{"name": "train", "image": "i", "command": SHELL}, BESIDE]
    ),
}


def come_in(made: Doc) -> Doc:
    """Let it come in as the launcher does: first what its pods lack, then its document."""
    trial = Injection(job_id="trial", job="trial", launch="trial", emulated=True)
    for each in made["spec"]["tasks"]:
        template = each["template"]
        pod = inject(template["spec"], template.get("metadata") or {}, trial, SETTINGS).spec
        for field in KEPT & template["spec"].keys():
            assert pod[field] == template["spec"][field]
    return volcano_job_document.job_document(made)


@pytest.mark.parametrize("name", REFUSED)
def test_one_that_cannot_be_reshaped_is_told_why_and_what_to_do(name: str) -> None:
    made, said = REFUSED[name]
    with pytest.raises(Rejected, match=said):
        come_in(made)


@pytest.mark.parametrize("name", LET_IN)
def test_others_come_in(name: str) -> None:
    made = LET_IN[name]
    if name == "a second container, with the first named":
        made["spec"]["tasks"][0]["template"]["metadata"] = {"annotations": {CONTAINER: "train"}}
    if name == "two equal pods":
        made["metadata"]["annotations"][volcano_job_document.MORE] = '{"checkpoint_claim": "kept"}'
    assert come_in(made)["job_id"] == "team.published"
