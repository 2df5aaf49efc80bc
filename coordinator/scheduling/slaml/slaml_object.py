"""Turns a Slaml object, as kubectl and `reshape submit -f` read it, into its row; checks it where no API server does.

Pure. `row_of` is called by the launcher for each object of a cluster, all of it by `slaml_requests` on one machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from coordinator.model.records import Doc, show
from coordinator.model.schema.field_types import problems_of_value, types_of_fields
from coordinator.model.tables import SlamlChanges
from coordinator.scheduling.slaml.slaml_fields import MOST_TASKS, SlamlSpecFields, SlamlTaskFields
from coordinator.scheduling.slaml.slaml_spec import GPUS, QUEUES, Slaml

API, KIND = "sla-operator.dcn.com/v1alpha1", "Slaml"
NOTES = (GPUS, *QUEUES)  # annotations and labels that count
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def row_of(item: Mapping[str, Any]) -> SlamlChanges:
    """Return the row of an object. The spec is JSON text: no store takes every key that it may hold."""
    meta = item["metadata"]
    labels = {name: value for name, value in (meta.get("labels") or {}).items() if name in NOTES}
    notes = {name: value for name, value in (meta.get("annotations") or {}).items() if name in NOTES}
    return {
        "namespace": str(meta["namespace"]),
        "name": str(meta["name"]),
        "generation": int(meta.get("generation") or 1),
        "created": datetime.fromisoformat(str(meta["creationTimestamp"])).timestamp(),
        "spec": json.dumps(item.get("spec") or {}, sort_keys=True),
        "notes": json.dumps(labels | notes, sort_keys=True),
        "deleted": "deletionTimestamp" in meta,
    }


def images_without_command(row: SlamlChanges) -> list[str]:
    """Return the images of tasks that do not say what they start."""
    parts = Slaml.from_row({"_id": "", **row}).parts
    return sorted({part.image for part in parts if part.image is not None and not part.spec.get("command")})


def object_problems(item: Mapping[str, Any]) -> list[str]:
    """Return what the API server finds by the CRD (manifests/base/slaml-crd.yaml), as sentences."""
    meta, spec = item.get("metadata"), item.get("spec")
    if (item.get("apiVersion"), item.get("kind")) != (API, KIND):
        return [f"apiVersion must be {API} and kind {KIND}"]
    if not isinstance(meta, dict) or not isinstance(spec, dict):
        return ["metadata and spec must be objects"]
    return [*_meta_problems(meta), *_spec_problems(spec)]


def _meta_problems(meta: Doc) -> Iterator[str]:
    for field in ("name", "namespace"):
        given = meta.get(field, "default" if field == "namespace" else None)
        if not isinstance(given, str) or not NAME.fullmatch(given):
            yield f"metadata.{field} must be up to 63 small letters, digits, dashes and dots, not {show(given)}"
    for field in ("annotations", "labels"):
        given = meta.get(field) or {}
        if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
            yield f"metadata.{field} must hold texts"


def _spec_problems(spec: Doc) -> Iterator[str]:
    for field, kind in types_of_fields(SlamlSpecFields).items():
        if spec.get(field) is not None:
            yield from problems_of_value(field, kind, spec[field])
    tasks = spec.get("tasks")
    if not isinstance(tasks, list) or len(tasks) > MOST_TASKS or not all(isinstance(task, dict) for task in tasks):
        yield f"tasks must be a list of at most {MOST_TASKS} objects"
        return
    names = [task.get("taskName") for task in tasks]
    for place, task in enumerate(tasks):
        if names[place] in names[:place]:
            yield f"two tasks have the taskName {show(names[place])}"
        given = {field: value for field, value in task.items() if value is not None}
        yield from problems_of_value(f"task {names[place]}", SlamlTaskFields, given)
