"""A store in memory for tests that need thousands of runs: the same contract, no disk, and hiccups on request.

Documents are kept encoded, so nobody shares one with the store. It refuses what every store refuses
(`coordinator.stores.rules`); `tests/unit/coordinator/test_fake_store.py` compares it with SqliteStore. It also refuses
to write a field that `coordinator.model.tables` does not list, or to change one into a value that would not be read as
it is; users, whose connection is `healthy`, may write any.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec

from coordinator.errors import Conflict, Transient
from coordinator.model import fields
from coordinator.model.schema.field_types import must_be, types_of_fields, wrong_fields
from coordinator.model.schema.row_fields import ROWS
from coordinator.model.tables import FIELDS
from coordinator.ports import Doc, Key
from coordinator.stores import rules

Hiccup = Literal["before", "after", ""]


class MemoryStore:
    """`hiccups` says for each write to come whether it fails before or after it was applied; `down` fails all."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[Key, bytes]] = {}
        self._changes: dict[tuple[str, Key], int] = {}  # the newest number of each row, the newest last
        self.hiccups: deque[Hiccup] = deque()
        self.down = False
        self.writes = 0
        self.checks_fields = True
        self.between_parts: Callable[[], None] = lambda: None  # of one `update_many`, which may end anywhere

    def healthy(self) -> MemoryStore:
        """Somebody else's connection to the same documents, which never fails."""
        other = MemoryStore()
        other._tables, other._changes = self._tables, self._changes
        other.checks_fields = False
        return other

    def get(self, table: str, key: Key) -> Doc | None:
        self._reachable()
        found = self._tables.get(table, {}).get(_key(key))
        return None if found is None else msgspec.json.decode(found)

    def list(self, table: str, where: Mapping[str, Any] | None = None) -> list[Doc]:
        self._reachable()
        rules.check_equalities(where or {})
        rows = self._tables.get(table, {})
        docs: list[Doc] = [msgspec.json.decode(rows[key]) for key in sorted(rows)]
        return [doc for doc in docs if _matches(doc, where or {})]

    def insert(self, table: str, doc: Doc) -> None:
        self._check_fields(table, doc)
        checked = rules.checked(doc)
        if _key(checked["_id"]) in self._tables.get(table, {}):
            raise Conflict("A document with this `_id` exists already.")
        self._write(table, checked["_id"], checked)

    def update(self, table: str, key: Key, expect: Mapping[str, Any], changes: Mapping[str, Any]) -> Doc:
        self._check_fields(table, changes)
        self._check_values(table, changes)
        rules.check_changes(changes)
        rules.check_equalities(expect)
        doc = self.get(table, key)
        if doc is None or not _matches(doc, expect):
            raise Conflict(f"{key!r} in {table} has changed or is gone: read it again.")
        version = doc.get("version")
        number = isinstance(version, int | float) and not isinstance(version, bool)
        doc = {**doc, **changes, "version": version + 1 if number else 1}
        self._write(table, key, doc)
        return self.get(table, key) or {}

    def update_many(self, table: str, updates: Sequence[tuple[Key, Mapping[str, Any], Mapping[str, Any]]]) -> int:
        changed = 0
        for number, (key, expect, changes) in enumerate(updates):
            if number:
                self.between_parts()
            with suppress(Conflict):
                self.update(table, key, expect, changes)
                changed += 1
        return changed

    def put(self, table: str, doc: Doc) -> None:
        self._check_fields(table, doc)
        checked = rules.checked(doc)
        self._write(table, checked["_id"], checked)

    def put_many(self, table: str, docs: Sequence[Doc]) -> None:
        for doc in docs:
            self.put(table, doc)

    def delete(self, table: str, key: Key, expect: Mapping[str, Any] | None = None) -> None:
        rules.check_equalities(expect or {})
        doc = self.get(table, key)
        if doc is None or not _matches(doc, expect or {}):
            raise Conflict(f"{key!r} in {table} has changed or is gone: read it again.")
        self._write(table, key, None)

    def scan(self, table: str, fields: Sequence[str]) -> Iterator[Doc]:
        for doc in self.list(table):
            yield {field: doc[field] for field in ("_id", *fields) if field in doc}

    def remove(self, table: str, keys: Sequence[Key], expect: Mapping[str, Any] | None = None) -> int:
        removed = 0
        for key in keys:
            with suppress(Conflict):
                self.delete(table, key, expect)
                removed += 1
        return removed

    def changed(
        self, tables: Sequence[str], since: int | None
    ) -> tuple[int, Mapping[tuple[str, Key], Doc | None] | None]:
        self._reachable()
        now = max(self._changes.values(), default=0)
        if since is None:
            return now, None
        rows = [row for row, number in self._changes.items() if number > since and row[0] in tables]
        return now, {row: self.get(*row) for row in rows}

    def compact(self) -> None:
        self._reachable()

    def append_events(self, events: Sequence[Doc]) -> None:
        for event in events:
            self.insert("events", event)

    def events_after(self, seq: int, limit: int = 1000) -> Sequence[Doc]:
        return [doc for doc in self.list("events") if isinstance(doc["_id"], int) and doc["_id"] > seq][:limit]

    def last_event(self) -> int:
        return max((doc["_id"] for doc in self.list("events") if isinstance(doc["_id"], int)), default=0)

    def wait(self, seconds: float) -> bool:
        return False

    def close(self) -> None:
        self.down = True

    def _check_fields(self, table: str, doc: Mapping[str, Any]) -> None:
        if not self.checks_fields or table not in FIELDS:
            return
        unknown = sorted(f for f in doc if f not in FIELDS[table] and not str(f).startswith(fields.USER_PREFIXES))
        assert unknown == [], f"table {table} has no field {', '.join(unknown)}: see coordinator/model/tables.py"

    def _check_values(self, table: str, changes: Mapping[str, Any]) -> None:
        """Refuse changes that would not be read as they are; a whole row may be a damaged one that is put back."""
        if not self.checks_fields or table not in ROWS:
            return
        kinds = types_of_fields(ROWS[table])
        wrong = [must_be(f, kinds[f], changes[f]) for f in wrong_fields(changes, ROWS[table]) if f in changes]
        assert wrong == [], f"table {table}: {'; '.join(wrong)}: see coordinator/model/schema/row_fields.py"

    def _reachable(self) -> None:
        if self.down:
            raise Transient("the store is down")

    def _write(self, table: str, key: Key, doc: Doc | None) -> None:
        self._reachable()
        hiccup = self.hiccups.popleft() if self.hiccups else ""
        if hiccup == "before":
            raise Transient("the store went away before the write")
        self.writes += 1
        rows = self._tables.setdefault(table, {})
        self._changes[table, key] = max(self._changes.values(), default=0) + 1
        if doc is None:
            del rows[_key(key)]
        else:
            rows[_key(key)] = json.dumps(doc, allow_nan=False).encode()
        if hiccup == "after":
            raise Transient("the store went away after the write")


def _key(key: Key) -> tuple[bool, Key]:
    """Numbers before text, and 1 is not "1"."""
    return isinstance(key, str), key


def _matches(doc: Doc, where: Mapping[str, Any]) -> bool:
    return all(_same(doc.get(k), v) or _holds(doc.get(k), v) for k, v in where.items())


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _holds(field: Any, value: Any) -> bool:
    return isinstance(field, list) and any(_same(one, value) for one in field)
