"""Turns a user's Volcano Job into a job document, and decides which Volcano Jobs are managed. Pure.

What cannot be read is refused with a sentence, which becomes an Event of the Volcano Job. Called by `volcano_job.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from adaptive_scheduler.candidates import gpus
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.schema.job_fields import MOST_PRIORITY
from coordinator.scheduling import intake
from launcher.admission.inject import node_of
from launcher.cluster.controllers import one_pod_jobs
from launcher.names import CONTAINER, COUNTS, FIELDS, INJECT, JOB, is_made_by_launcher

Doc = dict[str, Any]

GPUS = COUNTS
MORE = FIELDS
FINISHED = frozenset({"Completed", "Failed", "Terminated", "Completing", "Terminating"})
HALTED = frozenset({"Aborting", "Aborted"})  # suspended; it may be resumed
HARMLESS = frozenset({"", None, "SyncJob", "ResumeJob", "EnqueueJob"})  # actions that end no pod
# Fields that come from the Volcano Job itself; the annotation cannot set them.
TAKEN = frozenset(
    {"_id", "job_id", "uid", "state", "origin", "volcano", "slaml", "namespace", "queue", "image", "command", "owner"}
)
NOT = "This job is not started"
MOST_DEPTH = 32
TOO_DEEP = (
    f"{NOT}: the annotation {MORE} is nested more than {MOST_DEPTH} deep: write plain fields such as epochs there."
)


def phase(job: Mapping[str, Any]) -> str:
    return str(((job.get("status") or {}).get("state") or {}).get("phase") or "Pending")


def pod_count(job: Mapping[str, Any]) -> int:
    """Return how many pods it has, as Volcano counts them."""
    status = job.get("status") or {}
    return sum(int(status.get(name) or 0) for name in ("pending", "running", "terminating", "unknown"))


def ends_with_a_pod(job: Mapping[str, Any]) -> str | None:
    """Return the policy by which Volcano would end or restart the whole job when one of its pods is deleted, or None.

    A pod removed by a smaller `replicas` counts as evicted (`job_controller_handler.go`, 1.10).
    """
    spec = job.get("spec") or {}
    for owner in (*(spec.get("tasks") or []), spec):
        for policy in owner.get("policies") or []:
            found = {"PodEvicted", "*"} & {*(policy.get("events") or []), policy.get("event")}
            if found and policy.get("action") not in HARMLESS:
                return f"{min(found)}: {policy.get('action')}"
    return None


def failed_creates(uid: str) -> str:
    """Return the field selector of the Events that Volcano writes about pods of a Volcano Job that it cannot make."""
    return f"involvedObject.uid={uid},reason=FailedCreate"


def api_message(message: str) -> str:
    """Return the API server's message within an Event of Volcano, which prints whole Go structures."""
    found = re.search(r'Message:("(?:[^"\\]|\\.)*")', message)
    try:
        return str(json.loads(found[1])) if found else message
    except ValueError:
        return message


def refusal(events: Sequence[Mapping[str, Any]], since: str = "") -> str | None:
    """Return what the newest of these Events of Volcano says of a pod that it could not make.

    None if all are older than `since`, an ISO time.
    """
    newest = max(events, key=lambda event: str(event.get("lastTimestamp")), default=None)
    if newest is None or str(newest.get("lastTimestamp")) < since:
        return None
    return api_message(str(newest.get("message")))


def is_managed(job: Mapping[str, Any], queues: Sequence[str]) -> bool:
    """True if a user wants it reshaped, by its label or its queue. False for Volcano Jobs that the launcher made."""
    return not is_made_by_launcher(job) and (has_inject_label(job) or queue_of(job) in queues)


def misused_label(job: Mapping[str, Any]) -> str | None:
    """Return what to tell the user of a Volcano Job that carries a label of the launcher's own, else None."""
    if JOB not in (job["metadata"].get("labels") or {}) or is_made_by_launcher(job):
        return None
    return f"Its label {JOB} is one that volcano-reshape writes itself: it is ignored here, so take it away."


def has_inject_label(job: Mapping[str, Any]) -> bool:
    """True if its pods carry the label themselves, independent of its queue."""
    return any(_labels(task).get(INJECT) == "true" for task in (job.get("spec") or {}).get("tasks") or [])


def queue_of(job: Mapping[str, Any]) -> str:
    return str((job.get("spec") or {}).get("queue") or "default")


def missing_label(job: Mapping[str, Any], queues: Sequence[str]) -> str | None:
    """Return what to tell the user of a Volcano Job with our annotations but without the label, else None.

    Volcano keeps it waiting: the coordinator cannot see the label of its pods and takes the annotations for it.
    """
    meta = job["metadata"]
    notes, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    signs = [f"annotation {name}" for name in (GPUS, MORE) if name in notes]
    signs += [f'label {INJECT}: "true" on itself'] if labels.get(INJECT) == "true" else []
    if not signs or is_managed(job, queues) or is_made_by_launcher(job):
        return None
    return (
        f'It has the {signs[-1]}, but neither the label {INJECT}: "true" on the template of its task '
        f"nor a queue with that label ({queue_of(job)} has none). For the template delete it and apply it anew with "
        "that label; else label the queue, or take away what it has."
    )


def job_key(uid: str) -> str:
    """Return the `_id` of its job document: derived from the uid, so unique among Volcano Jobs of the same name."""
    return f"volcano-{uid}"


def job_id(job: Mapping[str, Any], taken: bool = False) -> str:
    """Return `namespace.name`, with a part of the uid if `taken` by an earlier Volcano Job of that name."""
    about = job["metadata"]
    plain = f"{about.get('namespace')}.{about['name']}"
    return f"{plain}.{str(about['uid'])[:8]}" if taken else plain


def priority_class(job: Mapping[str, Any]) -> str:
    """Return the name of its PriorityClass: its own, else that of its pods; empty if it names none."""
    spec = job.get("spec") or {}
    named = [
        ((task.get("template") or {}).get("spec") or {}).get("priorityClassName") for task in spec.get("tasks") or []
    ]
    return str(spec.get("priorityClassName") or next(filter(None, named), ""))


def job_document(
    job: Mapping[str, Any], taken: bool = False, owner: str | None = None, priority: int | None = None
) -> Doc:
    """Return the job document. `Rejected` with what is wrong, in sentences for the user.

    `owner`: who made it, as the webhook has noted; without that it is its namespace's. `priority`: of its class.
    """
    about, spec = job["metadata"], job.get("spec") or {}
    notes = about.get("annotations") or {}
    task = _task(spec)
    container = _container(task)
    pod = (task.get("template") or {}).get("spec") or {}
    doc: Doc = {
        **_more(notes.get(MORE)),
        "_id": job_key(str(about["uid"])),
        "job_id": job_id(job, taken),
        "state": s.SUBMITTED,
        "origin": "volcano",
        "volcano": one_pod_jobs.origin_of(job),
        "namespace": str(about.get("namespace")),
        "queue": queue_of(job),
        "owner": owner or str(about.get("namespace")),
        "image": container.get("image"),
        "command": [*container["command"], *(container.get("args") or [])],
    }
    if GPUS in notes or "optional_num_gpus" not in doc:
        doc["optional_num_gpus"] = _counts(notes.get(GPUS))
    if priority is not None and "priority" not in doc:
        doc["priority"] = max(-MOST_PRIORITY, min(MOST_PRIORITY, priority))
    if (kind := one_pod_jobs.kind_of(job)) and "gpus_per_pod" in doc:
        raise Rejected(f"{NOT}: gpus_per_pod is for jobs of several pods, and a {kind} has one. Leave it out.")
    _gang(doc, int(task.get("replicas", 1)), job)
    if node := node_of(pod):
        doc["node"] = node
    if found := intake.problems(doc):
        raise Rejected(f"{NOT}: " + "; ".join(found) + ".", problems=tuple(found))
    return doc


def _task(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    tasks = spec.get("tasks") or []
    if len(tasks) != 1:
        raise Rejected(
            f"{NOT}: it has {len(tasks)} tasks, and a job that is reshaped has one, with one pod or more that all run "
            "the same command. Make one task of a training's pods if they do; pods that do something else belong in a "
            f"Volcano Job of their own. To run it as it is, take a queue without the label {INJECT}."
        )
    task: Mapping[str, Any] = tasks[0]
    if int(task.get("replicas", 1)) < 1:
        raise Rejected(
            f"{NOT}: its task has {task['replicas']} replicas, so there is no pod to train in. Write 1 or more."
        )
    return task


def _gang(doc: Doc, replicas: int, job: Mapping[str, Any]) -> None:
    """Set the fields of a gang: a job of several pods, or one whose annotation says GPUs per pod."""
    counts = doc.get("optional_num_gpus")
    if replicas == 1 and "gpus_per_pod" not in doc:
        return
    each = doc.setdefault("gpus_per_pod", 1)
    if not isinstance(each, int) or not isinstance(counts, list):
        return  # intake has the sentence
    if replicas * each not in counts:
        raise Rejected(
            f"{NOT}: its task has {replicas} pods with {gpus(each)} each, which is {gpus(replicas * each)}, but the "
            f"annotation {GPUS} names {', '.join(map(str, counts))}. Write there all counts of GPUs that it can run "
            f'on; if its pods have more than one GPU each, say so in the annotation {MORE}, as {{"gpus_per_pod": 2}}.'
        )
    if ends_with_a_pod(job):
        doc["optional_num_gpus"] = [replicas * each]


def fixed_size(job: Mapping[str, Any], doc: Mapping[str, Any]) -> str | None:
    """Return what to tell the user of a gang whose own policies keep it from being resized, else None."""
    policy, notes = ends_with_a_pod(job), job["metadata"].get("annotations") or {}
    if policy is None or not doc.get("gpus_per_pod"):
        return None
    asked = _counts(notes[GPUS]) if GPUS in notes else _more(notes.get(MORE)).get("optional_num_gpus")
    if asked == doc.get("optional_num_gpus"):
        return None
    return (
        f"Its policy {policy} would end all of it as soon as it gives back one pod, so it keeps its size. Take that "
        "policy away: a pod that is lost is made again, and training goes on from its checkpoint without it."
    )


def _container(task: Mapping[str, Any]) -> Mapping[str, Any]:
    template = task.get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or []
    named = ((template.get("metadata") or {}).get("annotations") or {}).get(CONTAINER)
    fitting = [c for c in containers if named in (None, c.get("name"))]
    if len(fitting) != 1:
        raise Rejected(
            f"{NOT}: its pod has {len(containers)} containers"
            f"{f', none of them named {named}' if named and not fitting else ''}. "
            f"Name the one that trains in the annotation {CONTAINER} of the task's template."
        )
    container: Mapping[str, Any] = fitting[0]
    if not container.get("command"):
        raise Rejected(
            f"Container {container.get('name')} has no `command`: write there what the image would start "
            "(its ENTRYPOINT), because reshape puts its own program before it."
        )
    return container


def _counts(text: object) -> list[int]:
    if text is None:
        raise Rejected(f'{NOT}: say in the annotation {GPUS} on how many GPUs it can run, such as "1,2,4".')
    words = [word.strip() for word in str(text).split(",")]
    if not all(re.fullmatch(r"[0-9]{1,5}", word) for word in words):
        raise Rejected(f'{NOT}: the annotation {GPUS} must be GPU counts such as "1,2,4", not {str(text)[:60]!r}.')
    return sorted({int(word) for word in words})


def _more(text: object) -> Doc:
    if text is None:
        return {}
    try:
        found = json.loads(str(text))
    except ValueError as error:
        raise Rejected(f"{NOT}: the annotation {MORE} is no JSON: {error}.") from None
    except RecursionError:
        raise Rejected(TOO_DEEP) from None
    if not isinstance(found, dict):
        raise Rejected(f'{NOT}: the annotation {MORE} must be an object such as {{"epochs": 3}}.')
    if odd := sorted(str(field) for field in found if field in TAKEN):
        raise Rejected(f"{NOT}: the annotation {MORE} cannot set {', '.join(odd)}; the object itself says that.")
    if _is_deep(found):
        raise Rejected(TOO_DEEP)
    return {str(k): v for k, v in found.items()}


def _is_deep(found: object) -> bool:
    """True if it is nested deeper than a store takes."""
    left = [(found, 1)]
    while left:
        part, depth = left.pop()
        if depth > MOST_DEPTH:
            return True
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        left += [(one, depth + 1) for one in inner]
    return False


def _labels(task: Mapping[str, Any]) -> Mapping[str, Any]:
    return ((task.get("template") or {}).get("metadata") or {}).get("labels") or {}
