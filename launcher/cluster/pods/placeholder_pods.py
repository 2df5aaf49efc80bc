"""Placeholder pods as plain documents: small pods that hold one GPU each in the eyes of Kubernetes. Pure.

Promises: a row of table `placeholders` can be made again from its pod, so that a lost store loses no placeholder; such
a pod asks for one `nvidia.com/gpu` and next to nothing else, keeps the rules of the Pod Security level `restricted`,
is of class Guaranteed, and has time for a training to save when it is evicted. Those that were asked for together are
one PodGroup, so that all or none of them run. Called by `controllers.placeholders`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from coordinator.model.tables import PlaceholderChanges, PlaceholderField, PlaceholderRow, plain
from launcher.admission.inject import GPU, PYTHON, PodSettings, rights
from launcher.cluster.pods.pod_state import Pod
from launcher.names import PLACEHOLDER, PREFIX
from sidecar import placeholder

Doc = dict[str, Any]

ROW: Mapping[PlaceholderField, str] = {
    "job_id": "for-job",
    "node": "on-node",
    "queue": "queue",
    "size": "size",
    "opportunistic": "opportunistic",
}
"""Fields of a row by the annotation of its pod."""
PRIORITY = "reshape-gpu"
LOW_PRIORITY = "reshape-gpu-opportunistic"  # priority classes
GROUP = "scheduling.k8s.io/group-name"  # Volcano's annotation of a pod: its PodGroup
LEAST_GRACE_S = 60
SPARE_S = 30.0
COMMAND = [PYTHON, "-I", "-m", "sidecar.placeholder"]
REQUESTS = {"cpu": "10m", "memory": "48Mi", GPU: "1"}
HOST = "kubernetes.io/hostname"


def pod_of(row: PlaceholderRow, settings: PodSettings, master_key: bytes) -> Doc:
    """Return the pod that holds one GPU for this row. With `master_key` the word is made that ends it."""
    group = str(row["group"])
    told = {f"{PREFIX}/{name}": str(value) for field, name in ROW.items() if (value := row.get(field))}
    container: Doc = {
        "name": "placeholder",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": [*COMMAND, placeholder.hash_of(placeholder.word_of(master_key, str(row["_id"])))],
        "ports": [{"name": "release", "containerPort": placeholder.PORT}],
        "resources": {"requests": dict(REQUESTS), "limits": dict(REQUESTS)},
        "securityContext": rights(),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": str(row["_id"]),
            "namespace": namespace_of(row, settings),
            "labels": {PLACEHOLDER: group, "app.kubernetes.io/managed-by": "volcano-reshape"},
            "annotations": {**told, GROUP: group},
        },
        "spec": {
            "schedulerName": "volcano",
            "priorityClassName": priority_of(row),
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": grace_s(settings),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"key": GPU, "operator": "Exists"}],
            "affinity": _node_affinity(row.get("node"), group, int(row.get("size") or 1)),
            "containers": [container],
        },
    }


def pod_group_of(row: PlaceholderRow, settings: PodSettings) -> Doc:
    """Return the PodGroup of a row's pod and of those that were asked for with it."""
    spec = {"minMember": int(row.get("size") or 1), "priorityClassName": priority_of(row)}
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": str(row["group"]),
            "namespace": namespace_of(row, settings),
            "labels": {PLACEHOLDER: str(row["group"])},
        },
        "spec": {**spec, "queue": str(row.get("queue") or settings.queue)},
    }


def namespace_of(row: PlaceholderRow, settings: PodSettings) -> str:
    return str(row.get("namespace") or settings.namespace)


def priority_of(row: PlaceholderRow) -> str:
    return LOW_PRIORITY if row.get("opportunistic") else PRIORITY


def grace_s(settings: PodSettings) -> int:
    """Return how long an evicted placeholder stays: twice what a training may take to save and to be gone."""
    return max(LEAST_GRACE_S, math.ceil(2 * (settings.grace_s + settings.kill_s) + SPARE_S))


def row_of(pod: Pod) -> Doc:
    """Return the row that a pod was made for."""
    told = pod.meta.get("annotations") or {}
    kept = {field: told.get(f"{PREFIX}/{name}") for field, name in ROW.items()}
    row: PlaceholderChanges = {
        "_id": pod.name,
        "namespace": pod.namespace,
        "queue": kept["queue"] or "default",
        "node": kept["node"],
        "job_id": kept["job_id"] or "",
        "group": str((pod.meta.get("labels") or {}).get(PLACEHOLDER)),
        "size": int(kept["size"] or 1),
        "opportunistic": kept["opportunistic"] == "True",
        "wanted": "hold",
        "version": 1,
    }
    return plain(row)


def seen(pod: Pod) -> PlaceholderChanges:
    """Return what a row tells of its pod. `leaves_at`: end of its grace period on the wall clock, if it is deleted."""
    leaves = pod.meta.get("deletionTimestamp")
    found = {
        "namespace": pod.namespace,
        "uid": pod.uid,
        "node": pod.node,
        "phase": pod.phase,
        "leaves_at": datetime.fromisoformat(str(leaves)).timestamp() if leaves else None,
    }
    return {"pod": found, "unplaced": pod.unplaced, "failure": None}


def _node_affinity(node: str | None, group: str, size: int) -> Doc:
    """Bind to the node that has the GPUs free, else keep those that belong together on one node."""
    if node is not None:
        term: Doc = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    if size == 1:
        return {}
    term = {"labelSelector": {"matchLabels": {PLACEHOLDER: group}}, "topologyKey": HOST}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def shortened_group(group: Doc) -> Doc:
    """Return what is read of a PodGroup here and by `other_kinds`: there is one for most pods of a large cluster."""
    meta = group["metadata"]
    spec = group.get("spec") or {}
    kept = ("name", "namespace", "uid", "labels", "ownerReferences", "deletionTimestamp")
    return {
        "metadata": {field: meta[field] for field in kept if field in meta},
        "spec": {field: spec[field] for field in ("queue", "minMember", "minResources") if field in spec},
        "status": {"phase": (group.get("status") or {}).get("phase")},
    }


def wait_of_group(group: Mapping[str, Any]) -> Doc | None:
    """Return what a PodGroup of others waits for of which Volcano lets no pods be made yet, else None."""
    meta = group.get("metadata") or {}
    spec = group.get("spec") or {}
    asked = (spec.get("minResources") or {}).get(GPU) or (spec.get("minResources") or {}).get(f"requests.{GPU}")
    if (group.get("status") or {}).get("phase") != "Pending" or PLACEHOLDER in (meta.get("labels") or {}):
        return None
    if not str(asked).isdigit() or not int(str(asked)):
        return None
    pods = max(1, int(spec.get("minMember") or 1))
    each = math.ceil(int(str(asked)) / pods)
    return {"name": f"PodGroup {meta.get('namespace')}/{meta.get('name')}", "gpus": each, "pods": pods}
