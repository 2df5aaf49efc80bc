"""Writes all that a store holds as JSON lines, and fills a store with such lines: a backup that fits every store.

Promises: a file is read to its end and found whole before the first row is written; a store on which a coordinator acts
is never written to. Not in it is who acts (`terms`). Keys that JSON has no word for, as MongoDB makes, become text.
Called by `reshape store`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from coordinator.errors import Rejected, ReshapeError, Transient
from coordinator.model.records import show
from coordinator.ports import Doc, Store
from coordinator.stores import rules
from coordinator.stores.elector import Elector

VERSION = 1
TABLES = (
    "jobs", "gpus", "nodes", "launches", "queues", "slamls", "readers", "decisions", "events", "heartbeats",
    "speed_profiles", "overheads", "accuracy_profiles", "observations", "predictions", "usage",
    "shares", "gpu_use", "reservations",
)  # fmt: skip  # but terms, which say who acts
PART = 1_000  # rows after which the term is looked at again

Lines = Callable[[], Iterable[str]]


def exported(store: Store, wall: float, complain: Callable[[str], None]) -> Iterator[str]:
    """Yield the lines of a file: what it is, then one row each.

    `complain` is told of each row that a user's own program wrote and `import_all` will refuse.
    """
    yield json.dumps({"reshape_export": VERSION, "at": wall})
    for table in TABLES:
        for row in store.list(table):
            try:
                rules.checked(row)
            except Rejected as error:
                complain(f"The row {show(row['_id'])} of {table} is written, but cannot be imported again: {error}")
            if row.keys() == {"_id"}:
                complain(f"The row {show(row['_id'])} of {table} holds nothing that can be read; its key is written.")
            yield json.dumps({"table": table, "row": row}, default=str)


def import_all(store: Store, lines: Lines, elector: Elector, force: bool) -> int:
    """Fill the store; returns the number of rows. `lines` is called twice. `Rejected` says what is in the way.

    `force`: even if jobs are in it, which go.
    """
    for _ in _rows(lines()):
        pass
    if not elector.try_to_lead():
        raise Rejected(f"A coordinator ({elector.holder()}) acts on this store: stop it, then import.")
    over = threading.Event()
    keeping = threading.Thread(target=_keep_term, args=(elector, over), daemon=True)
    keeping.start()
    try:
        if not force and store.list("jobs"):
            raise Rejected("There are jobs in this store: --force puts the file in the place of all that is there.")
        return _fill(store, lines, elector)
    finally:
        over.set()
        keeping.join()
        elector.resign()


def _keep_term(elector: Elector, over: threading.Event) -> None:
    while not over.wait(elector.term_s / 5):
        with suppress(ReshapeError):  # `_check_term` finds it if no later try comes through
            elector.try_to_lead()


def _check_term(elector: Elector) -> None:
    if not elector.leads:
        raise Transient("The store was away for so long that a coordinator may act on it now: import again by --force.")


def _fill(store: Store, lines: Lines, elector: Elector) -> int:
    for table in TABLES:
        keys = [row["_id"] for row in store.scan(table, ())]
        for at in range(0, len(keys), PART):
            _check_term(elector)
            store.remove(table, keys[at : at + PART])
    count, events = 0, list[Doc]()
    for table, row in _rows(lines()):
        if count % PART == 0:
            _check_term(elector)
        count += 1
        if table != "events":
            store.put(table, row)
            continue
        events.append(row)
        if len(events) == PART:
            store.append_events(events)
            events = []
    if events:
        store.append_events(events)
    return count


def _rows(lines: Iterable[str]) -> Iterator[tuple[str, Doc]]:
    """Yield table and row of each line. `Rejected` names the first line that is wrong."""
    first, keys = True, set[tuple[str, object]]()
    for number, line in enumerate(lines, 1):
        found = _parsed(line, number)
        if first:
            _check_header(found)
        elif found.get("table") not in TABLES or not isinstance(row := found.get("row"), dict) or "_id" not in row:
            raise Rejected(f"Line {number} is no row of a table that is known here: {line.strip()[:60]!r}.")
        else:
            try:
                yield str(found["table"]), _fitting(str(found["table"]), row, keys)
            except Rejected as error:
                raise Rejected(f"Line {number} cannot be stored: {error} Correct that line or delete it.") from None
        first = False
    if first:
        raise Rejected("The file is empty: name one that `reshape store export` has written.")


def _fitting(table: str, row: Doc, keys: set[tuple[str, object]]) -> Doc:
    """The row as any store takes it; `keys` are those before it. What is found here need not be found half-way."""
    row, key = rules.checked(row), row["_id"]
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise Rejected(f"The `_id` {key!r} is neither text nor a whole number: change it.")
    if len(json.dumps(row, separators=(",", ":"))) > rules.MAX_BYTES:
        raise Rejected(f"The document {key!r} is larger than {rules.MAX_BYTES >> 20} MiB: make it smaller.")
    if (table, key) in keys:
        raise Rejected(f"The `_id` {key!r} comes twice in {table}: remove one of the two.")
    keys.add((table, key))
    return row


def _parsed(line: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Rejected(f"Line {number} is no JSON object: the file is cut off, or no export of this command.")
    return found


def _check_header(found: dict[str, Any]) -> None:
    version = found.get("reshape_export")
    if not isinstance(version, int):
        raise Rejected("This is no export: name a file that `reshape store export` has written.")
    if version > VERSION:
        raise Rejected(f"The export has version {version}, which is newer than this command's ({VERSION}): update it.")
