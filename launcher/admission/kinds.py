"""Names whose a pod is that is no Volcano Job's, and decides which of those can be reshaped. Pure.

A bare pod can, and the pod of a batch Job that has one. Others are refused, or run as they are, with a sentence: what
their controllers do with a pod that was changed or stopped is not known. Pods of most controllers are made by a batch
Job, a StatefulSet or a ReplicaSet between them and their user; labels name the one that the user wrote. Called by
`webhook` and by the launcher's controllers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.names import BATCH_JOBS, INJECT, QUEUE_LABEL, QUEUE_NOTE, VOLCANO_JOBS

Doc = dict[str, Any]

OF_TRAIN_JOBS = "trainer.kubeflow.org/trainjob-ancestor-step"  # its value is a step; the TrainJob has its JobSet's name
JOB_SET = "jobset.sigs.k8s.io/jobset-name"
# Labels that controllers put on pods, with the kind that their user wrote; its name is the label's value.
BY_LABEL = (
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("ray.io/cluster", "RayCluster"),
    ("workflows.argoproj.io/workflow", "Workflow"),
    ("sparkoperator.k8s.io/app-name", "SparkApplication"),
)
BY_OWNER = {"ReplicaSet": "Deployment"}
FIX = "Train as a Volcano Job, a batch Job with one pod, a bare pod or a record (`reshape submit`) to be reshaped"
POD = "pod"
BATCH_JOB = "batch Job"
JOB_SET_SIZE = "jobset.sigs.k8s.io/global-replicas"  # label of all pods of a JobSet: how many Jobs it has
INDEX = "batch.kubernetes.io/job-completion-index"  # label of the pods of an Indexed Job
KUEUE = "kueue.x-k8s.io/queue-name"  # label of what Kueue admits: the name of a LocalQueue
OF_KUBERNETES = "kubernetes.io/job-controller"  # value of a batch Job's `managedBy`
PODS = "parallelism: 1 and completions: 1"
RECREATE = (
    "This pod is in queue {queue}, whose devices are `recreate`: there each new count of GPUs needs another pod, which "
    "only a Volcano Job or a record is given. Take a queue in the mode shared or pool, or train as one of those."
)


def is_volcano_job(owner: Mapping[str, Any]) -> bool:
    return str(owner.get("apiVersion", "")).startswith(VOLCANO_JOBS)


def is_batch_job(owner: Mapping[str, Any]) -> bool:
    return str(owner.get("apiVersion", "")).startswith(BATCH_JOBS) and owner.get("kind") == "Job"


def controller_of(owners: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the ownerReference of the controller, else the first one; None if there is none."""
    return next((one for one in owners if one.get("controller")), next(iter(owners), None))


def one_pod_kind(owners: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> str | None:
    """Return `pod` or `batch Job` for a pod that may be reshaped beside those of Volcano Jobs; else None."""
    owner = controller_of(owners)
    if owner is None:
        return POD
    alone = labels.get(INDEX, "0") == "0" and (JOB_SET not in labels or labels.get(JOB_SET_SIZE) == "1")
    return BATCH_JOB if is_batch_job(owner) and alone else None


def queue_of_pod(metadata: Mapping[str, Any], job: Mapping[str, Any] | None = None) -> str:
    """Return the queue of a pod that is no Volcano Job's, as Volcano reads it, else that of Kueue.

    `job`: metadata of the pod's batch Job, which has Kueue's label; on its pods that would concern Kueue."""
    notes = metadata.get("annotations") or {}
    labels = metadata.get("labels") or {}
    of_job = (job or {}).get("labels") or {}
    return str(notes.get(QUEUE_NOTE) or labels.get(QUEUE_LABEL) or of_job.get(KUEUE) or labels.get(KUEUE) or "default")


def is_managed_by_others(job: Mapping[str, Any]) -> bool:
    """True if another controller than Kubernetes' own suspends, resumes or remakes this batch Job."""
    meta = job.get("metadata") or {}
    owner = controller_of(meta.get("ownerReferences") or [])
    return KUEUE in (meta.get("labels") or {}) or (owner is not None and owner.get("kind") != "CronJob")


def refuse_batch_job(job: Mapping[str, Any]) -> str:
    """Return why a batch Job whose template has our label cannot be reshaped, as a sentence; empty if it can."""
    meta = job.get("metadata") or {}
    spec = job.get("spec") or {}
    labels = meta.get("labels") or {}
    parallel = spec.get("parallelism", 1)
    completions = spec.get("completions", parallel)
    owner = controller_of(meta.get("ownerReferences") or [])
    why = ""
    if (parallel, completions) != (1, 1):
        why = f"it has {max(parallel, completions or 0)} pods, and one that is reshaped has {PODS}"
    elif spec.get("managedBy", OF_KUBERNETES) != OF_KUBERNETES:
        why = f"{spec['managedBy']} runs it, perhaps on another cluster"
    elif JOB_SET in labels and labels.get(JOB_SET_SIZE) != "1":
        why = f"{whose([], labels)} has other Jobs, or it is not known that it has none"
    elif JOB_SET not in labels and owner is not None and owner.get("kind") != "CronJob":
        why = f"it belongs to {whose([owner])}, of which it is not known what else it starts"
    if not why:
        return ""
    return f"The pods of this batch Job have the label {INJECT}, but {why}. {FIX}; or take the label away."


def whose(owners: Sequence[Mapping[str, Any]], labels: Mapping[str, str] | None = None) -> str:
    """Return whom a pod or PodGroup belongs to, such as `JobSet llm` or `no controller`."""
    labels = labels or {}
    if name := labels.get(JOB_SET):
        return f"{'TrainJob' if OF_TRAIN_JOBS in labels else 'JobSet'} {name}"
    for label, kind in BY_LABEL:
        if name := labels.get(label):
            return f"{kind} {name}"
    owner = controller_of(owners)
    if owner is None or owner.get("kind") == "Pod":
        return "no controller"
    kind = str(owner.get("kind"))
    name = str(owner.get("name"))
    if kind in BY_OWNER:
        return f"{BY_OWNER[kind]} {name.rpartition('-')[0] or name}"
    return f"{'batch ' if kind == 'Job' else ''}{kind} {name}"


def left_alone(owners: Sequence[Mapping[str, Any]], labels: Mapping[str, str] | None, queue: str) -> str:
    """Return the sentence about one in a queue of ours: it runs as it is."""
    return (
        f"Pods in queue {queue} are reshaped, but of other kinds than Volcano Jobs only those that ask for it. This "
        f"one belongs to {whose(owners, labels)}: it runs as it is, without a sidecar, and nobody keeps GPUs of others "
        f"from it. {_advice_on_kind(owners)}, or take another queue."
    )


def refused(owners: Sequence[Mapping[str, Any]], labels: Mapping[str, str] | None) -> str:
    """Return the sentence about a pod that is labelled and of another kind."""
    return (
        f"This pod has the label {INJECT}, but it belongs to {whose(owners, labels)}, and only pods of Volcano Jobs, "
        f"of batch Jobs with one pod, and bare pods can be reshaped. {FIX}; or take the label away, then it runs as it "
        "is."
    )


def _advice_on_kind(owners: Sequence[Mapping[str, Any]]) -> str:
    """Return what lets a pod be reshaped that runs as it is."""
    owner = controller_of(owners)
    if owner is None or owner.get("kind") == "Pod" or is_batch_job(owner):
        return f'Give its pod template the label {INJECT}: "true" if it is one pod that trains'
    return FIX
