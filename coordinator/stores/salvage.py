"""Sets a damaged SQLite file aside and takes over what can still be read of it.

Promises: the damaged file stays, under another name beside the new one; a row is taken over whole or not at all; a
full disk loses nothing, since the damaged file, or the connection to a deleted one, is kept until the new one is
written; of several processes one at a time does it. Not
taken over are rows of GPUs, since without one of them a document would pass for deleted, and those of terms, so that a
coordinator notices; it rebuilds both from what runs. Called by `sqlite.py`, which makes the new file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from coordinator.errors import Transient

LEFT_OUT = ("gpus", "terms")
PARTS = ("", "-wal", "-shm")
RESTORED = ".restored"
MAGIC, NAME = b"SQLite format 3\0", "reshape.sqlite"
DAMAGED = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
# Both ways: reading ends at the first damaged page.
READ = "SELECT name, key, body FROM documents ORDER BY name {way}, key {way}"

log = logging.getLogger(__name__)


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


def renew(path: Path, connect: Callable[[str], sqlite3.Connection], insert: str) -> None:
    """Set the damaged file aside, and put a new one there with what can be read. `Transient`: all is as it was."""
    aside = set_aside(path)
    try:
        with closing(connect(str(path))) as new:
            new.execute("BEGIN IMMEDIATE")
            new.executemany(f"{insert} ON CONFLICT (name, key) DO NOTHING", rows(aside))
            new.execute("COMMIT")
            (count,) = new.execute("SELECT count(*) FROM documents").fetchone()
    except sqlite3.Error as error:
        _put_back(aside, path)
        raise Transient(
            f"The file {path} is damaged and a new one cannot be written now ({error}): free some space."
        ) from error
    log.warning("The file %s was damaged: it is %s now, and %d rows of it are in a new one.", path, aside, count)


def _put_back(aside: Path, path: Path) -> None:
    for part in PARTS:
        path.with_name(path.name + part).unlink(missing_ok=True)
    for part in reversed(PARTS):  # the file itself last: SQLite would delete a log of writes beside an empty file
        with suppress(FileNotFoundError):
            aside.with_name(aside.name + part).rename(path.with_name(path.name + part))


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Of all processes that use the store at `path` one at a time is in here; the folder itself is the lock."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without such locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


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
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    if isinstance(name, str) and isinstance(body, str) and isinstance(doc, dict) and doc.get("_id") == key:
        return name, key, body
    return None


def write_back(connection: sqlite3.Connection, path: Path) -> None:
    """Write a deleted file, which its connection still has, beside its place; `come_back` puts it there.

    `Transient` where that cannot be written now: the connection is the last that holds the rows, so keep it.
    """
    new = path.with_name(f"{path.name}{RESTORED}")
    new.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(new)) as target:
            connection.backup(target)
    except sqlite3.Error as error:
        new.unlink(missing_ok=True)
        # Of a damaged file, or one closed before, nothing is kept: an empty one is made, and filled by what runs.
        if not is_damage(error) and not isinstance(error, sqlite3.ProgrammingError):
            raise Transient(
                f"The file {path} was deleted and cannot be written back now ({error}): free some space, and leave this"
                " process alone until then, which alone has its rows."
            ) from error


def come_back(path: Path, own_log: bool) -> None:
    """Put what `write_back` wrote in the place of the deleted file.

    `own_log`: whether the log of writes there is the former file's: SQLite would read it as that of the new one.
    """
    for part in PARTS[1:] if own_log else ():
        path.with_name(path.name + part).unlink(missing_ok=True)
    new = path.with_name(f"{path.name}{RESTORED}")
    if new.exists():
        new.replace(path)
