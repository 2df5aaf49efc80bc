"""Finds rows of the SQLite store by a field and by their changes: the tables `lookups` and `changes`, and projections.

Triggers keep them, not `sqlite.py`, so that every process that writes the file does, and users with `sqlite3`, too.
A lookup may find too many rows, which `sqlite.py` passes over, never too few. Imports no other store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from coordinator.stores import rules

VERSION = 2  # of what follows; a file with another one is indexed anew when it is opened
CREATE = (
    "CREATE TABLE lookups (name TEXT, field TEXT, value, key)",
    "CREATE INDEX lookups_by_value ON lookups (name, field, value, key)",
    "CREATE INDEX lookups_by_key ON lookups (name, key, field)",
    "CREATE TABLE changes (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, key)",
    "CREATE INDEX changes_by_key ON changes (name, key)",
)
FOLLOWED_CHANGES = 10_000  # of more changes than this since it last looked, a reader reads all rows
FORGET_CHANGES = f"DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - {FOLLOWED_CHANGES}"


def prepare(connection: sqlite3.Connection) -> None:
    """Index the file unless it is; takes some seconds for 100,000 rows, once."""
    if are_current(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not are_current(connection):  # else another process was first
            for statement in _statements(connection):
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def are_current(connection: sqlite3.Connection) -> bool:
    """True if triggers of this version keep the tables: another version's program may have indexed the file since."""
    return bool(connection.execute("PRAGMA user_version").fetchone()[0] == VERSION)


def _statements(connection: sqlite3.Connection) -> Iterator[str]:
    for (old,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        yield f'DROP TRIGGER "{old}"'
    yield from ("DROP TABLE IF EXISTS lookups", "DROP TABLE IF EXISTS changes", *CREATE)
    yield from _followers()
    for table, field in rules.INDEXED:
        yield f"{_insertion(table, field, 'documents')} WHERE documents.name = '{table}'"
        yield from _triggers(table, field)
    yield f"PRAGMA user_version = {VERSION}"


def _followers() -> Iterator[str]:
    """Number each change of a followed table, the newest of each row."""
    tables = ", ".join(f"'{table}'" for table in rules.FOLLOWED)
    for verb, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
        forget = f"DELETE FROM changes WHERE name = {row}.name AND key = {row}.key;"
        number = f"INSERT INTO changes (name, key) VALUES ({row}.name, {row}.key);"
        when = f"AFTER {verb} ON documents WHEN {row}.name IN ({tables})"
        yield f"CREATE TRIGGER follow_{verb.lower()} {when} BEGIN {forget} {number} END"


def _triggers(table: str, field: str) -> Iterator[str]:
    """A change of other fields costs nothing but the comparison."""
    after, add = f"CREATE TRIGGER {table}_{field}", f"{_insertion(table, field, 'new')};"
    forget = f"DELETE FROM lookups WHERE name = '{table}' AND key = old.key AND field = '{field}';"
    changed = f"json_extract(old.body, '$.{field}') IS NOT json_extract(new.body, '$.{field}')"
    yield f"{after}_added AFTER INSERT ON documents WHEN new.name = '{table}' BEGIN {add} END"
    yield f"{after}_changed AFTER UPDATE ON documents WHEN new.name = '{table}' AND {changed} BEGIN {forget} {add} END"
    yield f"{after}_removed AFTER DELETE ON documents WHEN old.name = '{table}' BEGIN {forget} END"


def _insertion(table: str, field: str, row: str) -> str:
    """Index a row by the field's value, or by each one if it is a list; a missing field counts as null."""
    path = f"json_type({row}.body, '$.{field}')"
    source = "documents, " if row == "documents" else ""
    each = f"json_each(CASE WHEN {path} IS NULL THEN '[null]' ELSE {row}.body END, CASE WHEN {path} IS NULL THEN '$' "
    return f"INSERT INTO lookups SELECT '{table}', '{field}', value, {row}.key FROM {source}{each}ELSE '$.{field}' END)"


def sought(value: Any) -> Any:
    """The value as `lookups` has it: SQLite's JSON functions end a text at its first NUL."""
    return value.partition("\0")[0] if isinstance(value, str) else value


def projection(fields: Sequence[str]) -> str:
    """An SQL expression: the fields of a document that it has, as a JSON list of pairs. A text ends at a NUL."""
    if not fields:
        return "'[]'"
    pairs = " UNION ALL ".join(
        f"SELECT json_array('{field}', {_exact(field)}) AS pair WHERE json_type(body, '$.{field}') IS NOT NULL"
        for field in fields
    )
    return f"(SELECT json_group_array(json(pair)) FROM ({pairs}))"


def _exact(field: str) -> str:
    """The value as JSON: `json_extract` alone would make 1 of true."""
    kind = f"json_type(body, '$.{field}')"
    flags = "WHEN 'true' THEN json('true') WHEN 'false' THEN json('false')"
    return f"CASE {kind} {flags} ELSE json_extract(body, '$.{field}') END"
