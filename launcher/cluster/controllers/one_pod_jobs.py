"""Reads batch Jobs and bare pods as the Volcano Jobs of one task with one pod that they stand for. Pure.

So whatever is decided about a user's Volcano Job is decided about them, too, by the same code. What differs is said
here: how each kind is stopped for a while and ended, and whether its pod is made anew. `metadata` is that of the object
itself, so that events and patches reach it. Called by `launch_service` and `volcano_job`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.admission import kinds
from launcher.admission.inject import SHIM, SHIM_IN_IMAGE
from launcher.admission.json_patch import pointer_part
from launcher.cluster.pods.pod_state import Pod
from launcher.names import COUNTS, FIELDS, INJECT, JOB, SUSPENDED, is_made_by_launcher

Doc = dict[str, Any]

PHASES = {"Succeeded": "Completed", "Failed": "Failed"}  # of pods
CONDITIONS = {"Complete": "Completed", "SuccessCriteriaMet": "Completed", "Failed": "Failed", "FailureTarget": "Failed"}
HALTED = "Aborted"  # as Volcano calls a job that its user has suspended
RUNNING = "Running"
API_KINDS = {kinds.BATCH_JOB: "BatchJob", kinds.POD: "Pod"}  # names in `launcher.cluster.api`
MOST_MESSAGE = 1024  # characters; Kubernetes takes 32 KiB in a condition


def read_batch_job(job: Mapping[str, Any]) -> Doc:
    """Return the Volcano Job that a batch Job stands for."""
    spec = job.get("spec") or {}
    template = spec.get("template") or {}
    notes = (template.get("metadata") or {}).get("annotations") or {}
    ends = {one.get("type"): one for one in (job.get("status") or {}).get("conditions") or [] if _condition_holds(one)}
    over = next((CONDITIONS[name] for name in CONDITIONS if name in ends), "")
    said = next((str(ends[name].get("message") or "") for name in CONDITIONS if name in ends), "")
    own = job["metadata"].get("annotations") or {}
    halted = bool(spec.get("suspend")) and SUSPENDED not in own
    phase = over or (HALTED if halted else RUNNING)
    made = _as_volcano_job("batch/v1", "Job", job["metadata"], template, phase, said)
    made["metadata"]["annotations"] = {**own, **{name: notes[name] for name in (COUNTS, FIELDS) if name in notes}}
    made["has_annotations"] = bool(own)
    made["spec"]["suspend"] = bool(spec.get("suspend"))
    return made


def read_pod(pod: Pod) -> Doc | None:
    """Return the Volcano Job that a bare pod of ours stands for; None for any other pod."""
    if not is_bare(pod) or pod.deleted:
        return None
    spec = _uninjected(pod.spec)
    template = {"metadata": {"labels": pod.meta.get("labels"), "annotations": pod.meta.get("annotations")}}
    phase = PHASES.get(pod.phase, RUNNING)
    return _as_volcano_job("v1", "Pod", pod.meta, {**template, "spec": spec}, phase, str(pod.trouble or ""))


def is_bare(pod: Pod) -> bool:
    """True if the pod was injected and nobody makes it anew."""
    asked = (pod.meta.get("labels") or {}).get(INJECT) == "true"
    return asked and pod.launch is not None and not pod.meta.get("ownerReferences")


def kind_of(job: Mapping[str, Any]) -> str | None:
    """Return `batch Job` or `pod`, None for a real Volcano Job."""
    if job.get("kind") == "Pod":
        return kinds.POD
    return kinds.BATCH_JOB if kinds.is_batch_job(job) else None


def origin_of(job: Mapping[str, Any]) -> Doc:
    """Return field `volcano` of a job document: which object of its user makes its pods.

    `kind` is only there for one that is no Volcano Job; `keeps_pod` if its pod cannot be made anew at our wish.
    """
    about = job["metadata"]
    made: Doc = {"namespace": str(about.get("namespace")), "name": str(about["name"]), "uid": str(about["uid"])}
    if kind := kind_of(job):
        made |= {"kind": kind, "keeps_pod": kind == kinds.POD or kinds.is_managed_by_others(job)}
    return made


def described(origin: Mapping[str, Any]) -> str:
    """Return what to call the object in a sentence: `Volcano Job`, `batch Job` or `pod`."""
    return str(origin.get("kind") or "Volcano Job")


def api_kind(origin: Mapping[str, Any]) -> str:
    """Return the name of the object's kind in `launcher.cluster.api`."""
    return API_KINDS.get(str(origin.get("kind")), "Job")


def suspension(job: Mapping[str, Any], suspend: bool) -> list[Doc]:
    """Return the JSON patch that stops a batch Job's pods without counting them as failed, or lets it go on."""
    note = annotation(job, SUSPENDED, "true") if suspend else [{"op": "remove", "path": _place_of(SUSPENDED)}]
    return [
        {"op": "test", "path": "/metadata/uid", "value": job["metadata"]["uid"]},
        *note,
        {"op": "add", "path": "/spec/suspend", "value": suspend},
    ]


def annotation(job: Mapping[str, Any], name: str, value: str) -> list[Doc]:
    """Return the JSON patch that sets an annotation of the object itself, which may have none: its pod's are not its
    own."""
    has_some = job.get("has_annotations", bool(job["metadata"].get("annotations")))
    operations: list[Doc] = [] if has_some else [{"op": "add", "path": "/metadata/annotations", "value": {}}]
    return [*operations, {"op": "add", "path": _place_of(name), "value": value}]


def failure_target(state: str, message: str, now: str) -> Doc:
    """Return the status by which Kubernetes ends a batch Job as Failed, with our reason. `now`: an ISO time.

    Its Job controller deletes the pods first. `FailureTarget` is stable since Kubernetes 1.31.
    """
    condition = {
        "type": "FailureTarget",
        "status": "True",
        "reason": f"Training{state.capitalize()}",
        "message": message[:MOST_MESSAGE],
        "lastProbeTime": now,
        "lastTransitionTime": now,
    }
    return {"status": {"conditions": [condition]}}


def _as_volcano_job(
    version: str, kind: str, meta: Mapping[str, Any], template: Mapping[str, Any], phase: str, message: str
) -> Doc:
    about = template.get("metadata") or {}
    labels = dict(meta.get("labels") or {})
    if not is_made_by_launcher({"metadata": meta}):
        labels.pop(JOB, None)  # the webhook wrote it
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {**meta, "labels": labels},
        "spec": {
            "queue": kinds.queue_of_pod(about, meta),
            "minAvailable": 1,
            "tasks": [{"replicas": 1, "template": template}],
        },
        "status": {"state": {"phase": phase, "message": message}},
    }


def _uninjected(spec: Mapping[str, Any]) -> Doc:
    """Return the spec of an injected pod with its user's own command."""
    return {**spec, "containers": [_with_own_command(one) for one in spec.get("containers") or []]}


def _with_own_command(container: Mapping[str, Any]) -> Doc:
    command = list(container.get("command") or [])
    for prefix in (SHIM, SHIM_IN_IMAGE):
        if command[: len(prefix)] == prefix:
            return {**container, "command": command[len(prefix) :]}
    return dict(container)


def _place_of(name: str) -> str:
    return f"/metadata/annotations/{pointer_part(name)}"


def _condition_holds(condition: Mapping[str, Any]) -> bool:
    return bool(condition.get("status") == "True")
