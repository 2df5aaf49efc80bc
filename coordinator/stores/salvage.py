"""Sets a damaged SQLite file aside and takes over what can still be read of it.

Promises: the damaged file stays, under another name beside the new one; a row is taken over whole or not at all. Not
taken over are rows of GPUs, since without one of them a document would pass for deleted, and those of terms, so that a
coordinator notices; it rebuilds both from what runs. Called by `sqlite.py`, which makes the new file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

LEFT_OUT = ("gpus", "terms")
PARTS = ("", "-wal", "-shm")
RESTORED = ".restored"
MAGIC, NAME = b"SQLite format 3\0", "reshape.sqlite"
DAMAGED = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
# Both ways: reading ends at the first damaged page.
READ = "SELECT name, key, body FROM documents ORDER BY name {way}, key {way}"


def is_damage(error: Exception) -> bool:
    """True if the file itself is damaged or no database, or a row no JSON, which the file's triggers refuse."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the lowest byte is the kind
    return code in DAMAGED or isinstance(error, msgspec.DecodeError) or "Could not decode to UTF-8" in str(error)


def is_ours(path: Path) -> bool:
    """False for a file that is no database and has another name than the store of a state folder."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC or path.name == NAME


def set_aside(path: Path) -> Path:
    """Rename the file, with its log of writes; returns its new name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for part in PARTS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + part).rename(aside.with_name(aside.name + part))
    return aside


def rows(damaged: Path) -> Iterator[tuple[str, object, str]]:
    """Yield name, key and body of each row that can be read, mostly twice."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(damaged)) as connection:
        connection.text_factory = bytes  # one that is no text must not end the reading
        for way in ("ASC", "DESC"):
            with suppress(sqlite3.Error):
                yield from filter(None, map(_whole, connection.execute(READ.format(way=way))))


def _whole(row: tuple[object, object, object]) -> tuple[str, object, str] | None:
    """The row as text; None if it is not whole."""
    try:
        name, key, body = (part.decode() if isinstance(part, bytes) else part for part in row)
        known = isinstance(name, str) and isinstance(body, str) and name not in LEFT_OUT
        doc = msgspec.json.decode(body) if known and isinstance(body, str) else None
    except (UnicodeDecodeError, msgspec.DecodeError):
        return None
    if isinstance(name, str) and isinstance(body, str) and isinstance(doc, dict) and doc.get("_id") == key:
        return name, key, body
    return None


def write_back(connection: sqlite3.Connection, path: Path) -> None:
    """Write a deleted file, which its connection still has, beside its place; `come_back` puts it there."""
    new = path.with_name(f"{path.name}{RESTORED}")
    new.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(new)) as target:
            connection.backup(target)
    except sqlite3.Error:
        new.unlink(missing_ok=True)  # an empty one is made, and filled by what runs


def come_back(path: Path, own_log: bool) -> None:
    """Put what `write_back` wrote in the place of the deleted file.

    `own_log`: whether the log of writes there is the former file's: SQLite would read it as that of the new one.
    """
    for part in PARTS[1:] if own_log else ():
        path.with_name(path.name + part).unlink(missing_ok=True)
    new = path.with_name(f"{path.name}{RESTORED}")
    if new.exists():
        new.replace(path)
