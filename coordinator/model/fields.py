"""Lists the fields of a job document: those that users write, and those that the coordinator and the launcher write.

The lists hold for documents from MongoDB and over HTTP; `Submission` in `coordinator/http/openapi.yaml` describes
PUBLIC. Intake rejects unknown fields, since they are usually misspelt; fields of users' own tools begin with `x_` or
`_`. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import get_args

from coordinator.model.field_names import CoordinatorJobField, PublicJobField, SystemJobField
from coordinator.model.records import show
from coordinator.model.tables import JobField, JobRow

PUBLIC = frozenset(get_args(PublicJobField))
"""Fields that users may write."""

COORDINATOR_FIELDS: tuple[JobField, ...] = ("node", *get_args(CoordinatorJobField))
"""Fields that the coordinator writes: values from users are cleared when the job is accepted, also that of `node`."""

SYSTEM_FIELDS = frozenset(get_args(SystemJobField))
"""Further fields that the coordinator or the launcher writes; a copy of an ended job has them, too."""

KNOWN = PUBLIC | SYSTEM_FIELDS | frozenset(COORDINATOR_FIELDS)
NOT_SUBMITTED = (
    (SYSTEM_FIELDS | frozenset(COORDINATOR_FIELDS)) - PUBLIC - {"_id", "version", "origin", "volcano", "slaml"}
)
"""Removed from documents that arrive over HTTP; intake rejects the others with a sentence."""

USER_PREFIXES = ("x_", "_")  # prefixes of fields of users' own tools
CLOSE = 0.6  # similarity from 0 to 1 above which a word is suggested


def unknown_fields(doc: JobRow) -> Iterator[str]:
    """Yield a sentence for each unknown field, with the most similar known one."""
    for field in sorted(str(field) for field in doc if field not in KNOWN):
        if not field.startswith(USER_PREFIXES) and not field.startswith("$") and "." not in field:
            guess = did_you_mean(field, PUBLIC)
            yield f"there is no field {show(field)}{guess}; begin the name of one of your own with x_"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean num_gpus?` for the most similar known word, ignoring case; else an empty string."""
    plain = {one.lower(): one for one in sorted(known)}
    close = difflib.get_close_matches(word.lower()[:100], plain, 1, CLOSE)
    return f", did you mean {plain[close[0]]}?" if close else ""


GPU_TYPES = frozenset(
    {
        "A2",
        "A10",
        "A16",
        "A30",
        "A40",
        "A100",
        "A800",
        "B100",
        "B200",
        "B300",
        "GB200",
        "GB300",
        "GH200",
        "H100",
        "H200",
        "H20",
        "H800",
        "K20",
        "K40",
        "K80",
        "L4",
        "L20",
        "L40",
        "L40S",
        "M4",
        "M40",
        "M60",
        "P4",
        "P6",
        "P40",
        "P100",
        "T4",
        "V100",
        "A2000",
        "A4000",
        "A4500",
        "A5000",
        "A5500",
        "A6000",
        "1080",
        "1080Ti",
        "2080",
        "2080Ti",
        "3060",
        "3060Ti",
        "3070",
        "3070Ti",
        "3080",
        "3080Ti",
        "3090",
        "3090Ti",
        "4060",
        "4060Ti",
        "4070",
        "4070Ti",
        "4080",
        "4090",
        "5070",
        "5070Ti",
        "5080",
        "5090",
    }
)
"""NVIDIA's GPU types, as `sidecar.resources.gpus.short_type` shortens them. Nodes may report others."""


def unknown_gpu_type(kind: object, *here: Iterable[str]) -> str:
    """Return why `kind` is no GPU type, or "". `here`: GPU types of the nodes and of the profiles."""
    if not isinstance(kind, str) or kind in GPU_TYPES:
        return ""
    known = {found for found in chain(*here) if found}
    if kind in known:
        return ""
    like = (
        did_you_mean(kind, GPU_TYPES | known) or f"; known are {', '.join(sorted(known or GPU_TYPES)[:5])} and others"
    )
    return f"no node and no speed profile has the GPU type {show(kind)}{like}"
