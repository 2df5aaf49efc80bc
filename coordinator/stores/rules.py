"""Checks documents by rules common to all stores, so that a document accepted here is accepted by every server.

Called by the two stores before they write or search. The rules are those of `reliability.md` 1:
the intersection of MongoDB, compatible servers and SQLite. Imports no database.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

from coordinator.errors import Rejected
from coordinator.ports import Doc

MAX_DEPTH = 100  # levels; MongoDB's limit
MAX_BYTES = 16 * 1024 * 1024  # MongoDB's limit for one document
INT_LIMIT = 2**63  # BSON and SQLite both keep signed 64 bits
LAST_EVENT = 2**53  # a higher number is none of ours: those that follow it could not be kept

FOLLOWED = ("jobs", "gpus", "nodes", "queues", "speed_profiles", "overheads", "accuracy_profiles", "reservations")
"""Tables that the decision loop follows by `Store.changed` where the store can tell."""

INDEXED = (
    ("jobs", "closed"),
    ("jobs", "job_id"),
    ("gpus", "node"),
    ("decisions", "job_id"),
    ("decisions", "jobs"),
    ("observations", "origin"),
)
"""Table and field of each `Store.list` with a condition. An index only saves reading: no answer depends on it."""


DELETED_AT_ONCE = 10
"""Documents of jobs that one reading may find deleted; a store that misses more has lost them."""


def are_lost(missing: int, known: int) -> bool:
    """True if so many of the open jobs' documents are gone at once that the store has lost them: nobody deleted them.

    More than `DELETED_AT_ONCE`, or at least two and half of all. One that is gone was deleted, which cancels its job.
    """
    return missing > DELETED_AT_ONCE or 2 <= missing >= known / 2


def checked(doc: Mapping[str, Any]) -> Doc:
    """A copy of `doc` fit to be stored, with a text `_id` if it had none. `Rejected` says what is wrong."""
    copy = {"_id": uuid.uuid4().hex, **doc}
    check_value(copy)
    return copy


def check_changes(changes: Mapping[str, Any]) -> None:
    """`Rejected` unless each field can be set by `Store.update`."""
    for field in ("_id", "version"):
        if field in changes:
            raise Rejected(f"The field `{field}` is kept by the store: leave it out of the changes.")
    check_value(changes)


def check_equalities(equalities: Mapping[str, Any]) -> None:
    """`Rejected` unless each field is compared with a single value.

    Lists and mappings compare differently from server to server, and a mapping that comes from
    outside could smuggle in an operator such as `{"$ne": null}`. Compare `version` instead.
    """
    for field, value in equalities.items():
        _check_key(field)
        if isinstance(value, Mapping | list | tuple | set):
            raise Rejected(f"The field `{field}` can only be compared with text, a number, a boolean or null.")
        check_value(value)


def check_value(value: Any, depth: int = 0) -> None:
    """`Rejected` if a server would refuse `value` or give it back changed."""
    if isinstance(value, Mapping | list | tuple):
        _check_nested(value, depth + 1)
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Rejected(f"The number {value} cannot be stored: use a finite number or null.")
    elif isinstance(value, int) and not -INT_LIMIT <= value < INT_LIMIT:
        raise Rejected("A whole number of more than 64 bits cannot be stored: use a smaller number or text.")


def matches(doc: Doc, expect: Mapping[str, Any]) -> bool:
    """Return whether MongoDB would find this document by these fields."""
    return all(_same(doc.get(field), value) for field, value in expect.items())


def _same(left: Any, right: Any) -> bool:
    # MongoDB keeps booleans and numbers apart, Python does not; and it finds a list by what is in it.
    one_of = isinstance(left, list) and any(_same(one, right) for one in left if not isinstance(one, list))
    return one_of or (bool(left == right) and isinstance(left, bool) == isinstance(right, bool))


def _check_nested(value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Rejected(f"The document is nested deeper than {MAX_DEPTH} levels: make it flatter.")
    if isinstance(value, Mapping):
        for key in value:
            _check_key(key)
        value = tuple(value.values())
    for inner in value:
        check_value(inner, depth)


def _check_key(key: Any) -> None:
    if not isinstance(key, str):
        raise Rejected(f"The key {key!r} is not text: use text for every key.")
    _check_text(key)
    if "." in key or key.startswith("$") or "\0" in key:
        raise Rejected(f"The key {key!r} cannot be stored: use no dot, no NUL and no `$` at its start.")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Rejected(f"The text {text[:40]!r} is not valid Unicode: remove the lone surrogate.") from error
