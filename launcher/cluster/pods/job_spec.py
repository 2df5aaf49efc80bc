"""Turns a job document into the Secret and the Volcano Job of a launch, as plain dicts. Pure.

Without Volcano (`RESHAPE_VOLCANO=0`) that is a batch Job with the same pod.

Promises: the same document and launch always give the same objects, so applying them is idempotent; no secret outside
the Secret. Called by the launcher: for jobs of records both objects are applied, for pods of a user's
own Volcano Job only the Secret that such a pod waits for. A gang (`gpus_per_pod`) is one Volcano Job of several pods,
which the webhook injects one by one, because each has GPUs, node and Secret of its own.

Fields of the job document that count here, all but `image` optional: `namespace`, `queue`, `image`, `command`, `env`,
`code` (the working folder in the image), `resources` {cores, memory}, `checkpoint_claim` and `dataset_claim`
(PersistentVolumeClaims),
`devices`, `single_container` (the image carries shim and sidecar, as playbooks/containerize.yml builds it; training
code can then read the launch key) and `pod`, which is merged into the pod's spec; its one container, if it has one,
into the trainer's.
"""

from __future__ import annotations

import json
import math
import posixpath
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from coordinator.errors import Rejected
from coordinator.model import pod_fields as about_pods
from coordinator.model.records import JobRecord, number
from coordinator.model.schema import dataset_fields
from coordinator.model.tables import JobRow
from coordinator.scheduling.intake import NO_GANGS
from launcher import launch_file
from launcher.admission import inject as pods
from launcher.admission.inject import Devices, Injection, PodSettings
from launcher.names import DATASET, FETCHER, INJECT, JOB, JOB_ID, LAUNCH, SIDECAR, job_name, launch_name
from sidecar import protocol
from sidecar.startup import fetch

Doc = dict[str, Any]

TASK = TRAINER = "trainer"
SCHEDULER = "volcano"
PART_OF = "volcano-reshape"
WAITING = "volcano.sh/sla-waiting-time"  # Volcano's sla plugin: how long a job may wait, from when its object was made
# Only the coordinator restarts a training: Volcano ends the job when a pod ends.
POLICIES = (("PodEvicted", "TerminateJob"), ("PodFailed", "TerminateJob"), ("TaskCompleted", "CompleteJob"))
# A pod that a gang gives back counts as evicted.
POLICIES_OF_GANGS = (("TaskCompleted", "CompleteJob"),)
WARM = "RESHAPE_WARM"  # `sidecar.warm`: 0 for no waiting interpreter
OUTAGES = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")  # taints of a node that is out of reach


def objects(doc: JobRow, settings: PodSettings, master_key: bytes, emulated: bool) -> tuple[Doc | None, Doc]:
    """Return Secret and Volcano Job, or batch Job, of the launch of a job document. `Rejected` with what to correct.

    `emulated`: whether the decided node's GPUs are. No Secret for a gang: each of its pods waits for its own.
    """
    job = JobRecord(dict(doc))
    name = launch_name(job.id, job.uid, job.launch)
    if job.gpus_per_pod is not None:
        if not settings.volcano:
            raise Rejected(NO_GANGS)
        return None, _volcano_job(job, name, _template_of_gang(job, settings), settings)
    template = _template(
        job,
        settings,
        Injection(
            job_id=job.id,
            job=job_name(job.id, job.uid),
            launch=name,
            devices=devices_of(doc),
            emulated=emulated,
            gpu_ids=job.gpu_ids,
            node=doc.get("node"),
            claim=doc.get("checkpoint_claim"),
            grace_s=launch_file.grace_s(job, settings),
        ),
    )
    secret = launch_secret(doc, template, settings, master_key, emulated)
    made = _volcano_job if settings.volcano else _batch_job
    return secret, made(job, name, template, settings)


def launch_secret(
    doc: JobRow,
    pod: Mapping[str, Any],
    settings: PodSettings,
    master_key: bytes,
    emulated: bool,
    member: int = 0,
) -> Doc:
    """Return the Secret that this injected pod waits for; owned by the pod, if it exists, and deleted with it.

    `member`: the pod's index in a gang.
    """
    job, about = JobRecord(dict(doc)), pod.get("metadata") or {}
    content = {
        "launch.json": json.dumps(launch_json(doc, pod, settings, emulated, member), indent=1).encode(),
        "launch.key": protocol.launch_key(master_key, job.uid, job.launch),
        "operator.token": protocol.launch_token(master_key, job.uid, job.launch),
    }
    secret = _object("v1", "Secret", about["annotations"][LAUNCH], job, doc, settings)
    if "uid" in about:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}
        secret["metadata"] |= {"namespace": about["namespace"], "ownerReferences": [owner]}
    return {**secret, "type": "Opaque", "data": {name: b64encode(text).decode() for name, text in content.items()}}


def launch_json(doc: JobRow, pod: Mapping[str, Any], settings: PodSettings, emulated: bool, member: int = 0) -> Doc:
    """Return launch.json for shim and sidecar of this injected pod. The command is in the pod itself."""
    job, spec, recreate = JobRecord(dict(doc)), pod.get("spec") or {}, devices_of(doc) == "recreate"
    beside = any(one.get("name") == pods.SIDECAR_CONTAINER for one in spec.get("initContainers") or [])
    return {
        **launch_file.fields(job, settings.coordinator, settings),
        "member": member,
        "pod_uid": str((pod.get("metadata") or {}).get("uid") or ""),
        "progress": _progress(doc, beside),
        "command": [],
        "env": launch_file.variables(doc, pods.CHECKPOINTS, DATASET) | _dataset(doc) | _waiting_interpreter(job),
        "workdir": None,
        "output": output_of(member),
        "tee": True,
        "checkpoints": pods.CHECKPOINTS,
        "pod": True,
        "sidecar": None if beside else list(pods.SIDECAR_COMMAND),
        "port": 0 if spec.get("hostNetwork") else pods.PORT,
        # In recreate mode, and beside a seat, the sidecar's container sees no GPU: the node agent watches them.
        "gpus": "emulated" if emulated else "none" if recreate or pods.has_seat(spec) else "nvml",
        "gpu_memory": settings.gpu_memory,
        "visible_gpus": list(job.parts(job.gpu_ids)[member]) if recreate else None,
        "device_plugin": recreate and not emulated,
    }


def _waiting_interpreter(job: JobRecord) -> dict[str, str]:
    """Return the variable that switches it off or sets its time. The shim reads it here, not in its own environment.

    Off beside a training on CPU: its pod never gets another count, and the imports would take the cores that it trains
    on.
    """
    said = (job.doc.get("env") or {}).get(WARM, "0" if job.uses_cpu else None)
    return {} if said is None else {WARM: str(said)}


def _dataset(doc: JobRow) -> dict[str, str]:
    """Return where the training finds the data of a claim: `dataset` is a path there, unless it is fetched."""
    if not doc.get("dataset_claim") or dataset_fields.place(doc):
        return {}
    return {"RESHAPE_DATASET": posixpath.join(DATASET, doc.get("dataset") or "").rstrip("/")}


def output_of(member: int) -> str:
    """Return the path of a pod's output: beside the checkpoints, so that with a claim it outlives the pod."""
    return f"{pods.CHECKPOINTS}/.output/output{f'-{member}' if member else ''}.log"


def devices_of(doc: JobRow) -> Devices:
    return "recreate" if doc.get("devices") == "recreate" else "shared"


def _progress(doc: JobRow, beside: bool) -> Doc:
    file = doc.get("progress_file")
    if beside and file and not str(file).startswith(f"{pods.FOLDER}/"):
        raise Rejected(
            f"progress_file must be the full path of a file below {pods.FOLDER}, such as {pods.FOLDER}/progress.json: "
            f"its sidecar, in another container, cannot read {str(file)[:60]!r}"
        )
    return launch_file.progress(doc)


# the Volcano Job of a record


def _volcano_job(job: JobRecord, name: str, template: Doc, settings: PodSettings) -> Doc:
    body = _object("batch.volcano.sh/v1alpha1", "Job", name, job, job.doc, settings)
    waits = job.operation is not None and job.operation.kind == "start"  # a relaunched job has waited already
    if waits and (wait_s := number(job.doc.get("sla_waiting_s"))):
        body["metadata"]["annotations"] = {WAITING: f"{math.ceil(wait_s)}s"}
    replicas = len(job.parts(job.gpu_ids))
    policies = POLICIES if job.gpus_per_pod is None else POLICIES_OF_GANGS
    body["spec"] = {
        "schedulerName": SCHEDULER,
        "queue": job.doc.get("queue") or settings.queue,
        "minAvailable": replicas,
        "maxRetry": 1,
        "ttlSecondsAfterFinished": settings.finished_s,
        "policies": [{"event": event, "action": action} for event, action in policies],
        # All fields that Volcano's webhook would fill in: applied again, a task that lacks one counts as changed.
        "tasks": [
            {"name": TASK, "replicas": replicas, "minAvailable": replicas, "maxRetry": 1, "template": template},
        ],
    }
    return body


def _batch_job(job: JobRecord, name: str, template: Doc, settings: PodSettings) -> Doc:
    """Return a batch Job that never makes a second pod: only the coordinator restarts a training."""
    body = _object("batch/v1", "Job", name, job, job.doc, settings)
    body["spec"] = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": settings.finished_s,
        "template": template,
    }
    return body


def _template(job: JobRecord, settings: PodSettings, one: Injection) -> Doc:
    carries = bool(job.doc.get("single_container"))
    metadata: Doc = {"labels": _labels(job), "annotations": {SIDECAR: pods.IN_IMAGE} if carries else {}}
    spec, annotations, labels = pods.inject(_pod(job.doc, settings), metadata, one, settings)
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def _template_of_gang(job: JobRecord, settings: PodSettings) -> Doc:
    """Return a pod template like that of a user's Volcano Job with the inject label."""
    carries = {SIDECAR: pods.IN_IMAGE} if job.doc.get("single_container") else {}
    metadata: Doc = {"labels": {**_labels(job), INJECT: "true"}, "annotations": {JOB_ID: job.id, **carries}}
    return {"metadata": metadata, "spec": _pod(job.doc, settings)}


def _pod(doc: JobRow, settings: PodSettings) -> Doc:
    """Return the pod's spec before injection. The document's own fields win over its `pod`."""
    theirs = about_pods.pod_spec(doc)
    containers = theirs.pop("containers", None) or [{}]
    if len(containers) != 1:
        raise Rejected(f"pod.containers must hold one container, which is the trainer's, not {len(containers)}")
    trainer = {**containers[0], "name": TRAINER, "command": launch_file.argv(doc["command"])}
    trainer.pop("args", None)
    if image := doc.get("image"):
        trainer["image"] = image
    if not trainer.get("image"):
        raise Rejected("image is missing: name the image that this job runs in")
    env = [{"name": name, "value": value} for name, value in (doc.get("env") or {}).items()]
    named = {one["name"] for one in env}
    trainer["env"] = [*(one for one in trainer.get("env") or [] if one.get("name") not in named), *env]
    if code := doc.get("code"):
        trainer["workingDir"] = code
    if resources := about_pods.trainer_resources(trainer, doc):
        trainer["resources"] = resources
    _give_dataset(theirs, trainer, doc, settings)
    if theirs.get("hostNetwork"):
        theirs.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    theirs["tolerations"] = [*(theirs.get("tolerations") or []), *_outage_tolerations(theirs)]
    if settings.volcano:
        theirs["schedulerName"] = SCHEDULER
    return {**theirs, "restartPolicy": "Never", "containers": [trainer]}


def _give_dataset(spec: Doc, trainer: Doc, doc: JobRow, settings: PodSettings) -> None:
    """Mount the volume with the data set, where there is one, read-only; fetch it into that first, if it is fetched."""
    claim, place = doc.get("dataset_claim"), dataset_fields.place(doc)
    if not claim and not place:
        return
    if claim:
        name = pods.volume_of_claim(spec, claim, FETCHER)
    else:
        name, spec["volumes"] = FETCHER, [*(spec.get("volumes") or []), {"name": FETCHER, "emptyDir": {}}]
    mount = {"name": name, "mountPath": DATASET}
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or []), {**mount, "readOnly": True}]
    if place:
        values = {fetch.ADDRESS: dataset_fields.address(doc) or "", fetch.SHA256: doc.get("dataset_sha256") or ""}
        init: Doc = {
            "name": FETCHER,
            "image": settings.image,
            "imagePullPolicy": settings.pull_policy,
            "command": [pods.PYTHON, "-I", "-m", "sidecar.startup.fetch", "--to", f"{DATASET}/{place}"],
            # Kubernetes would replace $(NAME) in it.
            "env": [{"name": name, "value": value.replace("$", "$$")} for name, value in values.items() if value],
            "resources": pods.resources({**spec, "containers": [trainer]}),
            "securityContext": pods.rights(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [mount],
        }
        spec["initContainers"] = [init, *(spec.get("initContainers") or [])]


def _outage_tolerations(spec: Doc) -> list[Doc]:
    """Return tolerations of nodes that are out of reach, of which `spec` itself says nothing.

    Kubernetes would delete the pod after five minutes and end its training once the node is back. Here the
    coordinator decides whether it goes on elsewhere.
    """
    about = [one for one in spec.get("tolerations") or [] if one.get("effect") in (None, "", "NoExecute")]
    said = {one.get("key") or None for one in about}
    unsaid = [key for key in OUTAGES if not said & {key, None}]  # without a key all taints are meant
    return [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in unsaid]


def _object(version: str, kind: str, name: str, job: JobRecord, doc: JobRow, settings: PodSettings) -> Doc:
    namespace = doc.get("namespace") or settings.namespace
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "labels": _labels(job)},
    }


def _labels(job: JobRecord) -> dict[str, str]:
    name = job_name(job.id, job.uid)
    return {
        JOB: name,
        "app.kubernetes.io/name": "training",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": TRAINER,
        "app.kubernetes.io/part-of": PART_OF,
        "app.kubernetes.io/managed-by": PART_OF,
    }
