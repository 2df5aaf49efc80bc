"""A user's Volcano Job as a job document: which ones are ours, and what they ask for. Pure.

Called by `doors.py`. What cannot be read is refused with a sentence, which becomes an event on the Volcano Job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.scheduling import intake
from launcher.admission.inject import node_of
from launcher.names import CONTAINER, INJECT, JOB, PREFIX, is_launch_of

Doc = dict[str, Any]

GPUS = f"{PREFIX}/gpus"
MORE = f"{PREFIX}/job"
FINISHED = frozenset({"Completed", "Failed", "Terminated", "Completing", "Terminating"})
HALTED = frozenset({"Aborting", "Aborted"})  # somebody suspended it; it may be resumed
HARMLESS = frozenset({"", None, "SyncJob", "ResumeJob", "EnqueueJob"})  # actions that end no pod
# What the Volcano Job itself says, and the annotation cannot say otherwise.
TAKEN = frozenset(
    {"_id", "job_id", "uid", "state", "origin", "volcano", "slaml", "namespace", "queue", "image", "command"}
)
NOT = "This Volcano Job is not reshaped"
MOST_DEPTH = 32
TOO_DEEP = (
    f"{NOT}: the annotation {MORE} is nested more than {MOST_DEPTH} deep: write plain fields such as epochs there."
)


def phase(job: Mapping[str, Any]) -> str:
    return str(((job.get("status") or {}).get("state") or {}).get("phase") or "Pending")


def pods(job: Mapping[str, Any]) -> int:
    """How many of its pods there are, by Volcano's count."""
    status = job.get("status") or {}
    return sum(int(status.get(name) or 0) for name in ("pending", "running", "terminating", "unknown"))


def ends_with_a_pod(job: Mapping[str, Any]) -> str | None:
    """The policy by which Volcano would end or restart all of it whenever one of its pods is deleted, also by itself.

    A pod that a smaller `replicas` takes away counts as evicted (`job_controller_handler.go`, 1.10).
    """
    spec = job.get("spec") or {}
    for owner in (*(spec.get("tasks") or []), spec):
        for policy in owner.get("policies") or []:
            found = {"PodEvicted", "*"} & {*(policy.get("events") or []), policy.get("event")}
            if found and policy.get("action") not in HARMLESS:
                return f"{min(found)}: {policy.get('action')}"
    return None


def words(message: str) -> str:
    """The API server's own sentence in an event of Volcano, which prints whole structures of Go."""
    found = re.search(r'Message:("(?:[^"\\]|\\.)*")', message)
    try:
        return str(json.loads(found[1])) if found else message
    except ValueError:
        return message


def ours(job: Mapping[str, Any], queues: Sequence[str]) -> bool:
    """Whether a user wants it reshaped: by its label, or by its queue. Jobs that we made ourselves are not meant."""
    return not made(job) and (labelled(job) or queue_of(job) in queues)


def made(job: Mapping[str, Any]) -> bool:
    """Whether we made it ourselves, for a record."""
    return is_launch_of(str((job["metadata"].get("labels") or {}).get(JOB)), str(job["metadata"]["name"]))


def mistaken(job: Mapping[str, Any]) -> str | None:
    """What to tell the user of one that looks as if we had made it."""
    if JOB not in (job["metadata"].get("labels") or {}) or made(job):
        return None
    return f"Its label {JOB} is one that volcano-reshape writes itself: it is ignored here, so take it away."


def labelled(job: Mapping[str, Any]) -> bool:
    """Whether its pods have the label themselves, whatever its queue says."""
    return any(_labels(task).get(INJECT) == "true" for task in (job.get("spec") or {}).get("tasks") or [])


def queue_of(job: Mapping[str, Any]) -> str:
    return str((job.get("spec") or {}).get("queue") or "default")


def forgotten(job: Mapping[str, Any], queues: Sequence[str]) -> str | None:
    """What to tell the user of one that seems to want it, but does not say that it shall be reshaped.

    Volcano keeps it waiting: the coordinator cannot see the label of its pods, and takes these signs for it.
    """
    meta = job["metadata"]
    notes, labels = meta.get("annotations") or {}, meta.get("labels") or {}
    signs = [f"annotation {name}" for name in (GPUS, MORE) if name in notes]
    signs += [f'label {INJECT}: "true" on itself'] if labels.get(INJECT) == "true" else []
    if not signs or ours(job, queues) or made(job):
        return None
    return (
        f'It has the {signs[-1]}, but neither the label {INJECT}: "true" on the template of its task '
        f"nor a queue with that label ({queue_of(job)} has none). For the template delete it and apply it anew with "
        "that label; else label the queue, or take away what it has."
    )


def key(uid: str) -> str:
    """The `_id` of its job document: the same for ever, and another one for another Volcano Job of the same name."""
    return f"volcano-{uid}"


def job_id(job: Mapping[str, Any], taken: bool = False) -> str:
    """`namespace.name`; with a piece of the uid where an earlier Volcano Job of that name had it."""
    about = job["metadata"]
    plain = f"{about.get('namespace')}.{about['name']}"
    return f"{plain}.{str(about['uid'])[:8]}" if taken else plain


def document(job: Mapping[str, Any], taken: bool = False) -> Doc:
    """The job document. `Rejected` with what is wrong, in sentences for the user."""
    about, spec = job["metadata"], job.get("spec") or {}
    notes = about.get("annotations") or {}
    task = _task(spec)
    container = _container(task)
    pod = (task.get("template") or {}).get("spec") or {}
    doc: Doc = {
        **_more(notes.get(MORE)),
        "_id": key(str(about["uid"])),
        "job_id": job_id(job, taken),
        "state": s.SUBMITTED,
        "origin": "volcano",
        "volcano": {"namespace": str(about.get("namespace")), "name": str(about["name"]), "uid": str(about["uid"])},
        "namespace": str(about.get("namespace")),
        "queue": queue_of(job),
        "image": container.get("image"),
        "command": [*container["command"], *(container.get("args") or [])],
    }
    if GPUS in notes or "optional_num_gpus" not in doc:
        doc["optional_num_gpus"] = _counts(notes.get(GPUS))
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
            "the same command. Pods that do something else, such as reading logs, belong in a Volcano Job of their own."
        )
    task: Mapping[str, Any] = tasks[0]
    if int(task.get("replicas", 1)) < 1:
        raise Rejected(
            f"{NOT}: its task has {task['replicas']} replicas, so there is no pod to train in. Write 1 or more."
        )
    return task


def _gang(doc: Doc, replicas: int, job: Mapping[str, Any]) -> None:
    """Several pods, or GPUs for each pod, make it one that comes and goes in whole pods."""
    counts = doc.get("optional_num_gpus")
    if replicas == 1 and "gpus_per_pod" not in doc:
        return
    each = doc.setdefault("gpus_per_pod", 1)
    if not isinstance(each, int) or not isinstance(counts, list):
        return  # intake has the sentence
    if replicas * each not in counts:
        raise Rejected(
            f"{NOT}: its task has {replicas} pods with {each} GPUs each, which is {replicas * each} GPUs, but the "
            f"annotation {GPUS} names {', '.join(map(str, counts))}. Write there all counts of GPUs that it can run "
            f'on; if its pods have more than one GPU each, say so in the annotation {MORE}, as {{"gpus_per_pod": 2}}.'
        )
    if ends_with_a_pod(job):
        doc["optional_num_gpus"] = [replicas * each]


def fixed(job: Mapping[str, Any], doc: Mapping[str, Any]) -> str | None:
    """What to tell the user of a gang whose own policies keep it at the size that it has."""
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
        raise Rejected(f"{NOT}: the annotation {MORE} cannot set {', '.join(odd)}; the Volcano Job says that.")
    if _is_deep(found):
        raise Rejected(TOO_DEEP)
    return {str(k): v for k, v in found.items()}


def _is_deep(found: object) -> bool:
    """Whether no store would take it."""
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
