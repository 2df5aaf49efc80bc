"""Checks and reads the fields of a job document about its pod: namespace, queue, pod template, Volcano Job. Pure.

Intake calls `problems` before it accepts a document; the launcher relies on that check.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from coordinator.model.records import show
from coordinator.model.tables import JobChanges, JobRow
from coordinator.model.text_rules import LONGEST_TEXT, MARKS_SHOWN, has_template_mark

QUEUE = "default"  # Volcano's default queue
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_WORDS = "a name that Kubernetes takes, of small letters, digits and dashes"
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
NAME_WORDS = f"{LABEL_WORDS}, or dots"
ORIGINS = ("record", "volcano")
POD_WORDS = 'an object with fields of a pod\'s spec, such as {"tolerations": []}'
LISTS = ("volumes", "containers", "initContainers")  # lists that the launcher extends or merges
MOST_PARTS = 10_000
MOST_DEPTH = 32
WHOLE = ("cpu", "memory")  # the resources that decide about the class Guaranteed


class SidecarRequests(NamedTuple):
    """Cores and bytes that Kubernetes keeps for a sidecar."""

    cores: float = 0.0
    memory: float = 0.0


OF_GUARANTEED = SidecarRequests(0.1, 256 * 2**20)  # its limits, too
OF_OTHERS = SidecarRequests(0.01, 64 * 2**20)


def problems(doc: JobRow) -> Iterator[str]:
    """Yield a sentence for what is wrong with a `pod` of the right type, or with what the launcher writes."""
    yield from _pod(doc.get("pod"))
    yield from _volcano(doc)


def pod_spec(doc: JobRow) -> dict[str, Any]:
    """The `pod` field as an object; it may be JSON text. `ValueError` if that cannot be parsed."""
    pod = doc.get("pod")
    return dict(json.loads(pod) if isinstance(pod, str) else pod or {})


def trainer_resources(container: Mapping[str, Any], doc: JobRow) -> dict[str, Any]:
    """The resources of the container that trains: the document's `resources` win over those in its `pod`."""
    theirs, given = container.get("resources") or {}, doc.get("resources")
    cores, memory = (given.get("cores"), given.get("memory")) if isinstance(given, dict) else (None, None)
    requests = {
        **({"cpu": f"{round(float(cores) * 1000)}m"} if cores else {}),
        **({"memory": str(round(memory)) if isinstance(memory, int | float) else str(memory)} if memory else {}),
    }
    return {**theirs, "requests": {**(theirs.get("requests") or {}), **requests}} if requests else dict(theirs)


def sidecar_requests(containers: Iterable[Mapping[str, Any]]) -> SidecarRequests:
    """What our sidecar requests beside these containers: it keeps a pod of class Guaranteed in that class."""
    return OF_GUARANTEED if all(_is_guaranteed(one.get("resources") or {}) for one in containers) else OF_OTHERS


def requested_beside(doc: JobRow) -> SidecarRequests:
    """What our sidecar requests in the pod of this job: nothing where it runs in the container that trains."""
    if doc.get("single_container"):
        return SidecarRequests()
    try:
        pod = pod_spec(doc)
        trainer, others = (pod.get("containers") or [{}])[0], pod.get("initContainers") or []
        return sidecar_requests([{"resources": trainer_resources(trainer, doc)}, *others])
    except (TypeError, ValueError, AttributeError):  # the launcher refuses it
        return OF_OTHERS


def _is_guaranteed(resources: Mapping[str, Any]) -> bool:
    """True if all requests equal the limits; a request that is not set is its limit."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return all(name in limits and str(requests.get(name, limits[name])) == str(limits[name]) for name in WHOLE)


def storable_pod(doc: JobRow) -> JobChanges:
    """The `pod` field as stored: JSON text if it has keys such as `nvidia.com/gpu`, which no store accepts."""
    pod = doc.get("pod")
    return {"pod": json.dumps(pod)} if isinstance(pod, dict) and storage_problem(pod) else {}


def storage_problem(doc: Mapping[str, Any]) -> str | None:
    """Return why no store accepts this document, or None; checked early, as a launch copies the whole document."""
    left: list[object] = [dict(doc)]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if odd := next((str(key) for key in part if "." in str(key) or str(key).startswith("$")), None):
                return f"the key {show(odd)} holds a dot or begins with $: choose another one"
            left += part.values()
        elif isinstance(part, list):
            left += part
        elif isinstance(part, float) and not math.isfinite(part):
            return f"{part} is no number that can be kept: leave it out"
    return None


def _pod(pod: object) -> Iterator[str]:
    if isinstance(pod, str):
        try:
            pod = json.loads(pod)
        except (ValueError, RecursionError):
            yield f"pod is a text, but no JSON: {show(pod)}"
            return
        if not isinstance(pod, dict):
            yield f"pod must be {POD_WORDS}, not {show(pod)}"
    if not isinstance(pod, dict):
        return
    for field in LISTS:
        part = pod.get(field)
        if part is not None and not (isinstance(part, list) and all(isinstance(one, dict) for one in part)):
            yield f"pod.{field} must be a list of objects, as in a pod's spec, not {show(part)}"
    left: list[tuple[object, int]] = [(pod, 1)]
    seen = 0
    while left:
        part, depth = left.pop()
        seen += 1
        if seen > MOST_PARTS or depth > MOST_DEPTH:
            yield f"pod has more than {MOST_PARTS} parts, or is nested more than {MOST_DEPTH} deep"
            return
        if isinstance(part, str) and (len(part) > LONGEST_TEXT or has_template_mark(part)):
            yield f"pod holds a template mark ({MARKS_SHOWN}) or a text of more than {LONGEST_TEXT} characters"
            return
        inner = [*part.keys(), *part.values()] if isinstance(part, dict) else part if isinstance(part, list) else []
        left += [(one, depth + 1) for one in inner]


def _volcano(doc: JobRow) -> Iterator[str]:
    origin, job = doc.get("origin"), doc.get("volcano")
    if origin is not None and origin not in ORIGINS:
        yield f"origin must be {' or '.join(ORIGINS)}, not {show(origin)}; leave it out"
    named = isinstance(job, dict) and all(isinstance(job.get(field), str) for field in ("namespace", "name", "uid"))
    if (origin == "volcano") != named or (job is not None and not named):
        yield "volcano and origin are written by the launcher for a Volcano Job: leave both out"
