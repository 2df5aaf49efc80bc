"""What a job document says about its pod on a cluster: namespace, queue, pieces of the pod, its Volcano Job. Pure.

Intake asks `problems` before it lets a document in; the launcher then relies on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.core.records import show

QUEUE = "default"  # Volcano's own, where a job names none
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
ORIGINS = ("record", "volcano")
TEMPLATE = ("{{", "{%", "{#")
MOST_PARTS, MOST_DEPTH, MOST_TEXT = 10_000, 32, 32_768


def problems(doc: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with these fields, each as a sentence that says what to write."""
    for field, kind in (("namespace", LABEL), ("queue", NAME), ("checkpoint_claim", NAME)):
        value = doc.get(field)
        if value is not None and not (isinstance(value, str) and kind.fullmatch(value)):
            small = "small letters, digits and dashes" + (", or dots" if kind is NAME else "")
            yield f"{field} must be a name that Kubernetes takes, of {small}, not {show(value)}"
    if doc.get("single_container") is not None and not isinstance(doc["single_container"], bool):
        yield f"single_container must be true or false, not {show(doc['single_container'])}"
    yield from _pod(doc.get("pod"))
    yield from _volcano(doc)


def _pod(pod: object) -> Iterator[str]:
    if pod is None:
        return
    if not isinstance(pod, dict):
        yield f'pod must be an object with fields of a pod\'s spec, such as {{"tolerations": []}}, not {show(pod)}'
        return
    left: list[tuple[object, int]] = [(pod, 1)]
    seen = 0
    while left:
        part, depth = left.pop()
        seen += 1
        if seen > MOST_PARTS or depth > MOST_DEPTH:
            yield f"pod has more than {MOST_PARTS} parts, or is nested more than {MOST_DEPTH} deep"
            return
        if isinstance(part, str) and (len(part) > MOST_TEXT or any(mark in part for mark in TEMPLATE)):
            yield f"pod holds a template mark ({', '.join(TEMPLATE)}) or a text of more than {MOST_TEXT} characters"
            return
        inner = [*part.keys(), *part.values()] if isinstance(part, dict) else part if isinstance(part, list) else []
        left += [(one, depth + 1) for one in inner]


def _volcano(doc: Mapping[str, Any]) -> Iterator[str]:
    origin, job = doc.get("origin"), doc.get("volcano")
    if origin is not None and origin not in ORIGINS:
        yield f"origin must be {' or '.join(ORIGINS)}, not {show(origin)}; leave it out"
    named = isinstance(job, dict) and all(isinstance(job.get(field), str) for field in ("namespace", "name", "uid"))
    if (origin == "volcano") != named or (job is not None and not named):
        yield "volcano and origin are written by the launcher for a Volcano Job: leave both out"
