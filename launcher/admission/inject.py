"""Injects shim and sidecar into a user's pod spec. Pure.

Promises: image, arguments, resources, user, probes and environment of the trainer's container stay as they are; it gets
a prefix to its command, one mount (two with a claim for checkpoints) and NVIDIA_VISIBLE_DEVICES or a seat, and in
recreate mode the number of `nvidia.com/gpu` that was granted. Idempotent. What cannot be injected is refused with a
sentence.
Called by `webhook` for users' Volcano Jobs, by `job_spec` for the launcher's own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from coordinator.errors import Rejected
from coordinator.model.pod_fields import OF_GUARANTEED, sidecar_requests
from launcher.admission.devices import claims_devices, other_accelerator
from launcher.admission.json_patch import pointer_part
from launcher.names import CONTAINER, FETCHER, INJECT, JOB, JOB_ID, LAUNCH, NODE_GATE, SIDECAR

Doc = dict[str, Any]
Devices = Literal["shared", "recreate"]

FOLDER, KEYS, CHECKPOINTS, PORT = "/reshape", "/reshape-keys", "/reshape/checkpoints", 8477
INIT_CONTAINER, SIDECAR_CONTAINER = "reshape-init", "reshape-sidecar"
FOLDER_VOLUME, KEYS_VOLUME, CLAIM_VOLUME = "reshape", "reshape-keys", "reshape-checkpoints"
PYTHON = "/opt/reshape/bin/python"  # of our image, and of images that carry shim and sidecar
SIDECAR_COMMAND = [PYTHON, "-I", "-m", "sidecar", "--folder", FOLDER, "--keys", KEYS]
SHIM = ["python3", "-I", "-S", f"{FOLDER}/shim.py", "--folder", FOLDER, "--"]
SHIM_IN_IMAGE = [PYTHON, "-I", "-S", "/opt/reshape/ours/sidecar/shim.py", "--folder", FOLDER, "--keys", KEYS, "--"]
IN_IMAGE = "in-image"  # value of the annotation SIDECAR
USER = 65532
SPARE_S = 5.0  # beyond saving and killing: the shim waits so long for its sidecar to report the end
USUAL_GRACE_S = 30  # Kubernetes' default
GPU = "nvidia.com/gpu"
SEAT = "volcano-reshape.io/seat"  # of the node agents' device plugin: all GPUs of the node, closed until granted
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NONE = "void"  # value of VISIBLE: no GPU
# Volcano preempts and reclaims pods that do not say this. `priority` and `gang` name victims before we are asked, and
# what they free are cores: the GPUs of a training are not in Volcano's books.
PREEMPTABLE = "volcano.sh/preemptable"
HOSTNAME = "kubernetes.io/hostname"  # label of nodes: not always their name
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class CannotInject(Rejected):
    """`reason`: one word in CamelCase for a Kubernetes Event."""

    def __init__(self, sentence: str, reason: str = "InjectionRefused") -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Settings of all pods on this cluster. Times in seconds (`reliability.md` 5)."""

    image: str
    """The one image of coordinator, launcher, node agent and sidecar."""
    coordinator: str
    """Address that heartbeats go to."""
    namespace: str = "default"
    """Namespace of job documents without one."""
    queue: str = "default"
    """Volcano's queue of job documents without one."""
    finished_s: int = 600
    """How long a Volcano Job of ours is kept after its end."""
    volcano: bool = True
    """Whether Volcano is used. Without it records are launched as batch Jobs, for Kubernetes' own scheduler."""
    pull_policy: str = "IfNotPresent"
    log_format: str = "text"
    """Of the logs of sidecars: `text`, for people, or `json`, one object a line."""
    checkpoint_claim: str | None = None
    """PersistentVolumeClaim for checkpoints in the pod's namespace; without one they end with the pod."""
    gpu_resource: bool = False
    """Whether `nvidia.com/gpu` is asked for in recreate mode where GPUs are emulated, too."""
    seats: str = ""
    """`files` or `cdi`: pods of modes `shared` and `pool` take a seat, by which they open only their own GPUs."""
    runtime_class: str = ""
    """RuntimeClass of training pods that name none, where NVIDIA's runtime is not the default one: nvidia."""
    gpu_memory: int | None = None
    """Bytes of one emulated GPU."""
    heartbeat_s: float = 5.0
    lease_s: float = 300.0
    grace_s: float = 20.0
    kill_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Injection:
    """The inputs for the injection of one pod."""

    job_id: str
    job: str  # `names.job_name`
    launch: str  # name of the Secret with launch.json, launch.key and operator.token
    devices: Devices = "shared"
    emulated: bool = False  # whether the node's GPUs are
    gpu_ids: tuple[str, ...] = ()  # granted; matters in recreate mode
    node: str | None = None  # decided by the coordinator
    grace_s: float = 0.0  # by its record, if that is more than the cluster's
    claim: str | None = None  # its own PersistentVolumeClaim for checkpoints, in place of the cluster's

    def plugin(self) -> bool:
        """True if a device plugin chooses the GPUs; then only it may say which."""
        return self.devices == "recreate" and not self.emulated

    def takes_seat(self, settings: PodSettings) -> bool:
        """True if the pod sees all GPUs of its node by a seat of ours."""
        return bool(settings.seats) and self.devices == "shared" and not self.emulated


class InjectedPod(NamedTuple):
    """The parts of a pod that `inject` changes."""

    spec: Doc
    annotations: dict[str, str]
    labels: dict[str, str]


def inject(spec: Mapping[str, Any], metadata: Mapping[str, Any], one: Injection, settings: PodSettings) -> InjectedPod:
    """Return the pod's new spec and all its annotations and labels. `CannotInject` with what to do."""
    annotations, labels = dict(metadata.get("annotations") or {}), dict(metadata.get("labels") or {})
    after: Doc = copy.deepcopy(dict(spec))
    trainer = _trainer(after, annotations)
    if _is_injected(after, trainer):
        return InjectedPod(after, annotations, labels)
    _check(after, trainer, one)
    if annotations.get(SIDECAR) == IN_IMAGE:
        _wrap(trainer, SHIM_IN_IMAGE, [_mount(FOLDER_VOLUME, FOLDER), _keys_mount()])
        _set_variable(trainer, "POD_IP", _pod_ip())
    else:
        _wrap(trainer, SHIM, [_mount(FOLDER_VOLUME, FOLDER)])
        ours = [_installer(after, settings), _sidecar(after, one, settings)]
        theirs = after.get("initContainers") or []
        after["initContainers"] = [*ours, *theirs] if one.takes_seat(settings) else [*theirs, *ours]
    _extend(after, "volumes", _volumes(one))
    _claim(after, trainer, one, settings)
    _give_gpus(trainer, one, settings)
    if one.takes_seat(settings):
        _close_from_start(after, trainer)
    if settings.runtime_class and not one.emulated:
        after.setdefault("runtimeClassName", settings.runtime_class)
    _give_time(after, one, settings)
    _pin(after, one.node)
    added = {LAUNCH: one.launch, JOB_ID: one.job_id}
    if PREEMPTABLE not in {*annotations, *labels}:
        added[PREEMPTABLE] = "false"
    return InjectedPod(after, annotations | added, labels | {JOB: one.job})


def placed_pod(pod: Mapping[str, Any], node: str | None, labels: Doc, annotations: Doc) -> list[Doc]:
    """Return the JSON patch that pins a pod that waits for its node, and takes its gate off.

    Kubernetes lets such a pod's node be narrowed, and its labels and annotations be set.
    """
    meta = pod["metadata"]
    spec = dict(pod.get("spec") or {})
    gates = [gate for gate in spec.get("schedulingGates") or [] if gate.get("name") != NODE_GATE]
    _pin(spec, node)
    placed: list[Doc] = [] if node is None else [{"op": "add", "path": "/spec/affinity", "value": spec["affinity"]}]
    return [
        {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
        *(_set_entry("labels", name, value) for name, value in labels.items()),
        *(_set_entry("annotations", name, value) for name, value in annotations.items()),
        *placed,
        {"op": "add", "path": "/spec/schedulingGates", "value": gates},
    ]


def _set_entry(field: str, name: str, value: str) -> Doc:
    """Return the operation that sets one label or annotation: schedulers write some, too."""
    return {"op": "add", "path": f"/metadata/{field}/{pointer_part(name)}", "value": value}


def is_injected(spec: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """True if `inject` would change nothing."""
    return _is_injected(spec, _trainer(spec, metadata.get("annotations") or {}))


def node_of(spec: Mapping[str, Any]) -> str | None:
    """Return the only node that a pod may go to, by affinity or node selector; None if there is none."""
    found = {_node_of_term(term) for term in _node_terms(spec)} or {None}
    return found.pop() if len(found) == 1 and None not in found else (spec.get("nodeSelector") or {}).get(HOSTNAME)


def grace_s(one: Injection, settings: PodSettings) -> int:
    """Return the seconds that a pod needs between SIGTERM and SIGKILL."""
    return math.ceil(max(one.grace_s, settings.grace_s) + settings.kill_s + SPARE_S)


def has_seat(spec: Mapping[str, Any]) -> bool:
    """True if a container of this pod has a seat."""
    return any(SEAT in ((one.get("resources") or {}).get("limits") or {}) for one in spec.get("containers") or [])


# what is refused


def _trainer(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> Doc:
    containers: list[Doc] = spec.get("containers") or []
    named = annotations.get(CONTAINER)
    if named is None and len(containers) != 1:
        raise CannotInject(
            f"This pod has {len(containers)} containers: write the name of the one that trains into the annotation "
            f"{CONTAINER}."
        )
    found = [one for one in containers if named in (None, one.get("name"))]
    if not found:
        raise CannotInject(f"The annotation {CONTAINER} names {named!r}, but no container of this pod is called so.")
    return found[0]


def _is_injected(spec: Mapping[str, Any], trainer: Mapping[str, Any]) -> bool:
    command = trainer.get("command") or []
    beside = any(one.get("name") == SIDECAR_CONTAINER for one in spec.get("initContainers") or [])
    return (beside and command[: len(SHIM)] == SHIM) or command[: len(SHIM_IN_IMAGE)] == SHIM_IN_IMAGE


def _check(spec: Mapping[str, Any], trainer: Mapping[str, Any], one: Injection) -> None:
    name = trainer.get("name")
    if not trainer.get("command"):
        raise CannotInject(
            f"Container {name!r} has no `command`: what its image starts by itself cannot be seen from here. Write it "
            'into the pod, such as command: ["python3", "train.py"].',
            "CommandRequired",
        )
    if spec.get("restartPolicy", "Always") == "Always":
        raise CannotInject(
            "This pod's restartPolicy is Always, which is what Kubernetes takes when none is written: training that "
            "is complete would begin again. Write restartPolicy: Never or OnFailure."
        )
    for field in ("shareProcessNamespace", "hostPID"):
        if spec.get(field):
            raise CannotInject(f"{field} must not be set: the end of its container would not end all of the training.")
    _check_devices(spec)
    _check_gpus(spec, trainer, one)
    _check_network(spec)
    _check_names(spec)


def _check_devices(spec: Mapping[str, Any]) -> None:
    """Refuse devices of which the coordinator knows nothing, and a node that no scheduler chose."""
    for container in _containers(spec):
        name = container.get("name")
        if other := other_accelerator(container):
            raise CannotInject(
                f"Container {name!r} asks for {other}, but only whole NVIDIA GPUs are shared out here: leave it out, "
                f"or take a queue without the label {INJECT}."
            )
        if claims_devices(container):
            raise CannotInject(
                f"Container {name!r} asks for devices by a ResourceClaim, which may be GPUs that are not shared out "
                f"here: leave it out, or take a queue without the label {INJECT}."
            )
    if spec.get("nodeName"):
        raise CannotInject(
            "This pod names its node in nodeName, past the scheduler: write nodeSelector "
            f"{HOSTNAME}: {spec['nodeName']} instead."
        )


def _check_gpus(spec: Mapping[str, Any], trainer: Mapping[str, Any], one: Injection) -> None:
    """Refuse `nvidia.com/gpu` in containers: Kubernetes would allocate GPUs that the coordinator shares out."""
    for container in _containers(spec):
        asks, name = _asks_for_gpus(container), container.get("name")
        if asks and one.devices == "shared":
            raise CannotInject(
                f"Container {name!r} asks for {GPU}, which jobs of this queue share: leave it out, or annotate the "
                "queue with devices: recreate."
            )
        if asks and container is not trainer:
            raise CannotInject(f"Container {name!r} asks for {GPU}, but only the one that trains may: leave it out.")


def _check_network(spec: Mapping[str, Any]) -> None:
    """Refuse a pod that cannot resolve Services: its sidecar would never find the coordinator."""
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    if policy == "Default" or (policy == "ClusterFirst" and spec.get("hostNetwork")):
        wanted = "ClusterFirstWithHostNet" if spec.get("hostNetwork") else "ClusterFirst"
        raise CannotInject(f"This pod cannot look up names of the cluster's Services: write dnsPolicy: {wanted}.")


def _check_names(spec: Mapping[str, Any]) -> None:
    containers = _containers(spec)
    mounts = [mount for one in containers for mount in one.get("volumeMounts") or []]
    used = {str(one.get("name")) for one in [*containers, *mounts, *(spec.get("volumes") or [])]}
    if taken := sorted(used & {INIT_CONTAINER, SIDECAR_CONTAINER, FOLDER_VOLUME, KEYS_VOLUME, CLAIM_VOLUME}):
        raise CannotInject(f"The name {taken[0]!r} is taken by what is added to this pod: choose another one.")
    paths = [f"{mount.get('mountPath')}/" for mount in mounts]
    if any(path.startswith((f"{FOLDER}/", f"{KEYS}/")) for path in paths):
        raise CannotInject(f"The folder {FOLDER} is needed for what is added to this pod: mount at another path.")


def _containers(spec: Mapping[str, Any]) -> list[Doc]:
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _asks_for_gpus(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    return any(GPU in (resources.get(kind) or {}) for kind in ("limits", "requests"))


# what is added


def _wrap(trainer: Doc, prefix: list[str], mounts: list[Doc]) -> None:
    trainer["command"] = [*prefix, *trainer["command"]]
    _extend(trainer, "volumeMounts", mounts)


def _give_gpus(trainer: Doc, one: Injection, settings: PodSettings) -> None:
    if one.takes_seat(settings):
        _unset_variable(trainer, VISIBLE)
        _ask_for(trainer, SEAT, 1)
        return
    if one.devices == "shared":
        _set_variable(trainer, VISIBLE, {"value": "all"})
        return
    if one.plugin() and one.gpu_ids:
        _unset_variable(trainer, VISIBLE)
    else:  # none while nothing is granted, whatever its image sets
        _set_variable(trainer, VISIBLE, {"value": ",".join(one.gpu_ids) or NONE})
    if one.gpu_ids and (settings.gpu_resource or not one.emulated):
        _ask_for(trainer, GPU, len(one.gpu_ids))


def _close_from_start(spec: Doc, trainer: Doc) -> None:
    """Give the sidecar a seat, too: GPUs are closed to the whole pod before its first container with one starts, and it
    starts before any of the user's. `CannotInject` where there is no sidecar and another container starts first.

    It must be one that runs on: a kubelet that starts anew allots seats to containers that do not run, before it knows
    of any, and would end the pod.
    """
    for container in _containers(spec):
        if container.get("name") == SIDECAR_CONTAINER:
            _set_variable(container, VISIBLE, {"value": NONE})
            _ask_for(container, SEAT, 1)
            return
        if container is trainer:
            return
        if container.get("name") not in (INIT_CONTAINER, FETCHER):
            raise CannotInject(
                f"Container {container.get('name')!r} starts before the one that trains, when GPUs are not closed to "
                f"this pod yet: put the one that trains first, or leave the annotation {SIDECAR} out."
            )


def _ask_for(container: Doc, resource: str, count: int) -> None:
    resources = container["resources"] = dict(container.get("resources") or {})
    for kind in ("limits", "requests"):
        resources[kind] = {**(resources.get(kind) or {}), resource: str(count)}


def _unset_variable(container: Doc, name: str) -> None:
    """Remove a variable of the pod: it would override the one that a device plugin sets."""
    if kept := [variable for variable in container.get("env") or [] if variable.get("name") != name]:
        container["env"] = kept
    else:
        container.pop("env", None)


def _claim(spec: Doc, trainer: Doc, one: Injection, settings: PodSettings) -> None:
    """Mount the job's folder of the claim for checkpoints in the trainer and in the sidecar, which verifies them."""
    if not (claim := one.claim or settings.checkpoint_claim):
        return
    mount = {**_mount(volume_of_claim(spec, claim, CLAIM_VOLUME), CHECKPOINTS), "subPath": one.job}
    for container in (trainer, *(spec.get("initContainers") or [])):
        if container is trainer or container.get("name") == SIDECAR_CONTAINER:
            _extend(container, "volumeMounts", [dict(mount)])


def volume_of_claim(spec: Doc, claim: str, name: str) -> str:
    """Return the name of the pod's volume of this claim; add one called `name` if it has none.

    The kubelet starts no pod that has two volumes of one claim.
    """
    by_claim = {(each.get("persistentVolumeClaim") or {}).get("claimName"): each for each in spec.get("volumes") or []}
    if claim in by_claim:
        return str(by_claim[claim]["name"])
    _extend(spec, "volumes", [{"name": name, "persistentVolumeClaim": {"claimName": claim}}])
    return name


def _give_time(spec: Doc, one: Injection, settings: PodSettings) -> None:
    theirs = spec.get("terminationGracePeriodSeconds")
    spec["terminationGracePeriodSeconds"] = max(USUAL_GRACE_S if theirs is None else theirs, grace_s(one, settings))


def _pin(spec: Doc, node: str | None) -> None:
    """Pin to the decided node by name, in addition to the user's own terms. An empty term fits no node."""
    if node is None:
        return
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [
        {**t, "matchFields": [*(t.get("matchFields") or []), field]} if any(t.values()) else t
        for t in _node_terms(spec)
    ]
    affinity = spec.get("affinity") or {}
    required = {REQUIRED: {"nodeSelectorTerms": terms or [{"matchFields": [field]}]}}
    spec["affinity"] = {**affinity, "nodeAffinity": {**(affinity.get("nodeAffinity") or {}), **required}}


def _node_terms(spec: Mapping[str, Any]) -> list[Doc]:
    """Return the required node selector terms; a node fits when any of them does."""
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return (node.get(REQUIRED) or {}).get("nodeSelectorTerms") or []


def _node_of_term(term: Mapping[str, Any]) -> str | None:
    named = [field.get("values") or [None] for field in term.get("matchFields") or [] if field.get("operator") == "In"]
    return named[-1][0] if named else None  # ours comes last


def _volumes(one: Injection) -> list[Doc]:
    return [{"name": FOLDER_VOLUME, "emptyDir": {}}, {"name": KEYS_VOLUME, "secret": {"secretName": one.launch}}]


def _installer(spec: Mapping[str, Any], settings: PodSettings) -> Doc:
    return {
        "name": INIT_CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": [PYTHON, "-I", "-m", "sidecar.startup.install", "--from", KEYS, "--to", FOLDER],
        "resources": resources(spec),
        "securityContext": rights(),
        "volumeMounts": [_mount(FOLDER_VOLUME, FOLDER), _keys_mount()],
    }


def _sidecar(spec: Mapping[str, Any], one: Injection, settings: PodSettings) -> Doc:
    """Return the sidecar's container, which lives as long as the pod.

    In the host's network many may run on one machine: then it takes any port and has no probe.
    """
    container: Doc = {
        "name": SIDECAR_CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "restartPolicy": "Always",
        "command": list(SIDECAR_COMMAND),
        "env": [{"name": "POD_IP", **_pod_ip()}],
        "resources": resources(spec),
        "securityContext": rights(),
        "volumeMounts": [_mount(FOLDER_VOLUME, FOLDER), _keys_mount()],
    }
    if settings.log_format != "text":
        container["env"].append({"name": "RESHAPE_LOG_FORMAT", "value": settings.log_format})
    reads_gpus = one.devices == "shared" and not one.emulated and not one.takes_seat(settings)
    if reads_gpus:  # all of the node, without computing on them
        reads = {VISIBLE: "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
        container["env"] += [{"name": name, "value": value} for name, value in reads.items()]
    if not spec.get("hostNetwork"):
        container["ports"] = [{"name": "reshape", "containerPort": PORT, "protocol": "TCP"}]
        probe = {"httpGet": {"path": "/livez", "port": PORT}, "initialDelaySeconds": 5, "periodSeconds": 5}
        container["livenessProbe"] = {**probe, "timeoutSeconds": 3, "failureThreshold": 4}
    return container


def resources(spec: Mapping[str, Any]) -> Doc:
    """Return resources that keep a pod of class Guaranteed in it: it may own cores, and is evicted last."""
    asked = sidecar_requests(_containers(spec))
    requests = {"cpu": f"{asked.cores * 1000:.0f}m", "memory": f"{asked.memory / 2**20:.0f}Mi"}
    return {"requests": requests, "limits": dict(requests) if asked is OF_GUARANTEED else {"memory": "256Mi"}}


def rights() -> Doc:
    """Return the least security context for our containers in a user's pod."""
    return {
        "runAsUser": USER,
        "runAsGroup": USER,
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _pod_ip() -> Doc:
    return {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _mount(volume: str, path: str) -> Doc:
    return {"name": volume, "mountPath": path}


def _keys_mount() -> Doc:
    return {**_mount(KEYS_VOLUME, KEYS), "readOnly": True}


def _extend(owner: Doc, name: str, more: Iterable[Doc]) -> None:
    owner[name] = [*(owner.get(name) or []), *more]


def _set_variable(container: Doc, name: str, content: Doc) -> None:
    """Set a variable, at the place of the user's if there is one: a variable may use those before it."""
    ours, env = {"name": name, **content}, list(container.get("env") or [])
    known = [index for index, one in enumerate(env) if one.get("name") == name]
    for index in known:
        env[index] = dict(ours)
    container["env"] = env if known else [*env, ours]
