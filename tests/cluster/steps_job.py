"""The jobs of the cluster tests: `trainers/steps.py` in a bare image, as a record or as a user's own Volcano Job.

Its code comes by a ConfigMap; each pod mounts a folder that both nodes share, for the locks of GPUs, and may mount a
claim for checkpoints. Used by `installed.py` and by the tests. Not a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.bed_volcano import pod_template, volcano_job
from tests.cluster.built_images import ROOT, name_of

Doc = dict[str, Any]

NAMESPACE = "training"
CLAIM = "checkpoints"
JOB_TYPE = "steps"
QUEUE, RECREATE_QUEUE = "reshape", "reshape-recreate"
IMAGE = name_of("base")
CODE = {
    "steps.py": "tests/cluster/trainers/steps.py",
    "gang.py": "tests/cluster/trainers/gang.py",
    "evil.py": "tests/cluster/trainers/evil.py",
    "curve.py": "tests/fakes/trainers/curve.py",
    "reshape_hooks/plain.py": "reshape_hooks/plain.py",
    "reshape_hooks/locks.py": "reshape_hooks/locks.py",
}
SPEEDS = {1: 0.4, 2: 0.2, 4: 0.1}  # GPUs -> seconds per step


def command(total: int) -> list[str]:
    return ["python3", "/steps/steps.py", str(total)]


def pod(shared: Path) -> Doc:
    """What a pod needs beside image and command: code and locks."""
    items = [{"key": name.replace("/", "."), "path": name} for name in CODE]
    mounts = [{"name": "code", "mountPath": "/steps"}, {"name": "gpu-locks", "mountPath": "/gpu-locks"}]
    trainer = {
        "name": "trainer", "imagePullPolicy": "Never", "volumeMounts": mounts,
        "env": [{"name": "RESHAPE_GPU_LOCKS", "value": "/gpu-locks"}],
    }  # fmt: skip
    volumes = [
        {"name": "code", "configMap": {"name": JOB_TYPE, "items": items}},
        {"name": "gpu-locks", "hostPath": {"path": str(shared / "gpu-locks")}},
    ]
    return {"volumes": volumes, "containers": [trainer]}


def record(job_id: str, total: int, counts: list[int], shared: Path, **more: Any) -> Doc:
    """Door (a): the job document."""
    return {
        "_id": job_id, "job_id": job_id, "state": "submitted", "job_type": JOB_TYPE, "image": IMAGE,
        "command": command(total), "iterations": total, "optional_num_gpus": counts, "namespace": NAMESPACE,
        "queue": QUEUE, "pod": pod(shared), "elastic": True, **more,
    }  # fmt: skip


def volcano(name: str, total: int, counts: list[int], shared: Path, queue: str = QUEUE, **more: Any) -> Doc:
    """Door (b): a user's own Volcano Job. `more`: further fields of its job document."""
    base = pod(shared)
    (trainer,) = base["containers"]
    template = pod_template({**trainer, "image": IMAGE, "command": command(total)}, volumes=base["volumes"])
    made = volcano_job(name, template, queue=queue, policies=[{"event": "TaskCompleted", "action": "CompleteJob"}])
    made["spec"]["tasks"][0]["maxRetry"] = 3  # Volcano fills it in, and takes a file that lacks it for another one
    fields = {"job_type": JOB_TYPE, "iterations": total, "elastic": True, **more}
    made["metadata"] |= {
        "namespace": NAMESPACE,
        "annotations": {
            "volcano-reshape.io/gpus": ",".join(map(str, counts)), "volcano-reshape.io/job": json.dumps(fields),
        },
    }  # fmt: skip
    return made


def bare_pod(name: str, total: int, counts: list[int], shared: Path, **more: Any) -> Doc:
    """A user's own pod, which no controller makes. `more`: as for `volcano`."""
    base = pod(shared)
    (trainer,) = base["containers"]
    fields = {"job_type": JOB_TYPE, "iterations": total, "elastic": True, **more}
    notes = {
        "volcano-reshape.io/gpus": ",".join(map(str, counts)),
        "volcano-reshape.io/job": json.dumps(fields),
        "scheduling.volcano.sh/queue-name": QUEUE,
    }
    labels = {"volcano-reshape.io/inject": "true"}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": notes}
    container = {**trainer, "image": IMAGE, "command": command(total)}
    spec = {"restartPolicy": "Never", "schedulerName": "volcano", "volumes": base["volumes"], "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def batch_job(name: str, total: int, counts: list[int], shared: Path, **more: Any) -> Doc:
    """A user's own batch Job of one pod."""
    made = bare_pod(name, total, counts, shared, **more)
    template = {
        "metadata": {field: made["metadata"][field] for field in ("labels", "annotations")},
        "spec": made["spec"],
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def objects(shared: Path) -> list[Doc]:
    """What the jobs find in their namespace, and the queue whose jobs are recreated."""
    volume = "training-checkpoints"
    about = {"namespace": NAMESPACE}
    code = {name.replace("/", "."): (ROOT / path).read_text() for name, path in CODE.items()}
    size, how = {"storage": "1Gi"}, {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": JOB_TYPE, **about}, "data": code},
        {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
            "spec": {
                "capacity": size, **how, "hostPath": {"path": str(shared / "checkpoints")},
                "claimRef": {"name": CLAIM, **about},
            },
        },
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM, **about},
            "spec": {**how, "volumeName": volume, "resources": {"requests": size}},
        },
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
            "metadata": {
                "name": RECREATE_QUEUE, "labels": {"volcano-reshape.io/inject": "true"},
                "annotations": {"volcano-reshape.io/devices": "recreate"},
            },
            "spec": {"weight": 1, "reclaimable": True},
        },
    ]  # fmt: skip
