"""Reads from Volcano's Queue objects what rights to GPUs they give. Pure. Called by `volcano_job.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from adaptive_scheduler.shares import MOST_MAKESPAN_WEIGHT
from launcher.admission.inject import GPU
from launcher.cluster.pods.limit_rules import amount
from launcher.names import MAKESPAN_WEIGHT

Doc = dict[str, Any]


def share_of(queue: Mapping[str, Any]) -> Doc:
    """Return weight, guaranteed and most GPUs (None: any number), whether other queues get any of it back, the queue
    that it is part of (None: none that binds), and its weight of makespan (None: that of the coordinator).

    What cannot be read counts as not written; Volcano's own webhook refuses it.
    """
    spec = queue.get("spec") or {}
    limit = _gpu_count(spec.get("capability"))
    guarantee = spec.get("guarantee") or {}
    surely = max(_gpu_count(spec.get("deserved")) or 0, _gpu_count(guarantee.get("resource")) or 0)
    weight = spec.get("weight")
    return {
        "weight": weight if isinstance(weight, int) and weight > 0 else 1,
        "guaranteed": surely if limit is None else min(surely, limit),
        "limit": limit,
        "reclaimable": spec.get("reclaimable") is not False,
        "parent": spec.get("parent") or None,
        "makespan_weight": _makespan_weight(queue),
    }


def annotation_problem(queue: Mapping[str, Any]) -> str:
    """Return what is wrong with the annotation about makespan, as a sentence; empty if nothing is."""
    given = _annotation(queue)
    if given is None or _makespan_weight(queue) is not None:
        return ""
    must = f"must be a number from 0 to {MOST_MAKESPAN_WEIGHT:,}"
    return f"The annotation {MAKESPAN_WEIGHT} {must}, not {str(given)[:40]!r}; taken as not written."


def _annotation(queue: Mapping[str, Any]) -> object:
    return ((queue.get("metadata") or {}).get("annotations") or {}).get(MAKESPAN_WEIGHT)


def _makespan_weight(queue: Mapping[str, Any]) -> float | None:
    try:
        found = float(str(_annotation(queue)))
    except ValueError:
        return None
    return found if 0 <= found <= MOST_MAKESPAN_WEIGHT else None


def _gpu_count(resources: object) -> int | None:
    found = amount(resources.get(GPU)) if isinstance(resources, Mapping) else None
    return None if found is None or found < 0 else math.floor(found)
