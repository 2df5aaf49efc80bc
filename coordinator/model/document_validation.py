"""Validates rows of `jobs`, `gpus` and `nodes` as they are read from the store.

Documents can be edited by hand. An invalid field is replaced by its former value where that is known, else dropped; a
job that is meaningless without the field is set aside, so that one bad document affects only itself. The store is not
changed. Rows of profiles are validated in `adaptive_scheduler/profiles/profiles.py`. Pure; called by the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from coordinator.model import states as s
from coordinator.model.records import Doc, show
from coordinator.model.schema.field_types import is_flag, must_be, types_of_fields, wrong_fields
from coordinator.model.schema.row_fields import ROWS
from coordinator.model.tables import JobRow

UNKNOWN_NODE = "unknown"  # node of a GPU whose `node` field is invalid
FLAGS = {
    table: frozenset(name for name, kind in types_of_fields(struct).items() if is_flag(kind))
    for table, struct in ROWS.items()
}
"""By table: fields that are true or false."""


class ValidatedDocument(NamedTuple):
    """A row that is safe to use, and one sentence per invalid field."""

    doc: Doc
    invalid_fields: tuple[str, ...] = ()
    usable: bool = True  # False: set the row aside


ESSENTIAL = (
    "job_id",
    "uid",
    "state",
    "gpu_ids",
    "optional_num_gpus",
    "reshape",
    "closed",
    "generation",
    "launch",
    "version",
)
"""Fields without which a job is meaningless: the job is set aside unless their former value is known.

A former `version` does not help, because compare-and-set compares the one in the store.
"""


def validate(table: str, doc: Doc, former: Mapping[str, Any] | None = None) -> ValidatedDocument:
    """Validate a row of `table`; `former` is the row as it was used before, if it was."""
    # Some MongoDB-compatible servers store true and false as 1 and 0.
    kept = {field: doc[field] == 1 for field in FLAGS[table] & doc.keys() if _is_0_or_1(doc[field])}
    doc = {**doc, **kept} if kept else doc
    wrong = wrong_fields(doc, ROWS[table])
    same = "uid" in wrong or (former or {}).get("uid") == doc.get("uid")
    if table == "jobs" and former and same:  # else it would be two jobs
        wrong += ["job_id"] if "job_id" not in wrong and former.get("job_id") != doc.get("job_id") else []
    held = table == "jobs" and isinstance(doc.get("contradiction"), str)  # a human is to decide about it
    if not wrong:
        return ValidatedDocument(doc, (doc["contradiction"],), usable=False) if held else ValidatedDocument(doc)
    before = former or {}
    mended = {field: value for field, value in doc.items() if field not in wrong}
    mended |= {field: before[field] for field in wrong if field in before}
    usable = table != "jobs" or not (held or any(f in ESSENTIAL and (f == "version" or f not in before) for f in wrong))
    if table == "gpus" and any(
        field in ("node", "state", "job_id", "held_by") and field not in before for field in wrong
    ):
        # A job may have it, so it is not assigned.
        mended |= {"node": mended.get("node") or UNKNOWN_NODE, "state": s.FAULTY}
    return ValidatedDocument(
        mended, tuple(_sentence(table, field, doc.get(field), field in before) for field in wrong), usable
    )


def _is_0_or_1(value: object) -> bool:
    return type(value) is int and value in (0, 1)


def is_closed(doc: JobRow) -> bool:
    """True if a raw job document is closed: nothing is left to reconcile."""
    return doc.get("closed") in (True, 1)


def gpu_fields_of(doc: JobRow) -> Doc:
    """Fields of a GPU row as the job document of its owner implies them: former values if none are known."""
    known: Doc = {"state": s.IN_USE, "job_id": doc.get("job_id"), "held_by": doc.get("job_id")}
    return known if doc.get("gpus_per_pod") or doc.get("max_workers") else {**known, "node": doc.get("node")}


def _sentence(table: str, field: str, value: Any, mended: bool) -> str:
    then = "its former value is used" if mended else "it is passed over"
    what = must_be(field, types_of_fields(ROWS[table])[field], value)
    if table == "jobs" and field == "job_id":
        what = f"job_id must be the name that it was let in with, not {show(value)}"
    return f"{what}; {then} until you correct or remove it"
