"""`Store` on one SQLite file: the embedded default, durable and atomic with no server.

Several processes may open the same file; compare-and-set holds between them, because each change reads and writes
inside one `BEGIN IMMEDIATE`. A file that is deleted under it is written back, another one in its place is opened, a
damaged one is set aside (`salvage.py`), and one whose folder was moved away is waited for. Opened by
`opening.open_store`. Imports no other store.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import starmap
from pathlib import Path
from typing import Any

import msgspec

from coordinator.errors import Conflict, Rejected, Transient
from coordinator.model.records import show
from coordinator.ports import Doc, Key
from coordinator.stores import lookups, rules, salvage

BUSY_SECONDS = 5.0  # wait for another process that is writing
LOOK_SECONDS = 0.05  # how often `wait` asks whether another process has written
EVENTS = "events"

# `key` has no type on purpose: SQLite then keeps 1 and "1" apart and orders numbers before text.
SCHEMA = "CREATE TABLE IF NOT EXISTS documents (name TEXT, key, body TEXT, PRIMARY KEY (name, key)) WITHOUT ROWID"
INSERT = "INSERT INTO documents (name, key, body) VALUES (?, ?, ?)"
REPLACE = f"{INSERT} ON CONFLICT (name, key) DO UPDATE SET body = excluded.body"  # REPLACE would skip the triggers
SELECT = "SELECT key, body FROM documents WHERE name = ?"
BY_FIELD = " AND key IN (SELECT key FROM lookups WHERE name = ? AND field = ? AND value IS ?)"
CHANGED = "SELECT name, key, body FROM changes LEFT JOIN documents USING (name, key) WHERE number > ?"
NUMBERED = f"key <= {rules.LAST_EVENT}"  # and no text, which comes behind numbers
PART = 1_000  # rows of one part of `scan` or `remove`

PASSING = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM})
DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})

log = logging.getLogger(__name__)


class SqliteStore:
    """See `coordinator.ports.Store`. Keys are text or whole numbers and come back as they were given."""

    def __init__(self, path: str) -> None:
        """Open or create the file at `path`, and its folder. `Rejected` if that cannot be a store."""
        self._path = path
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._closed = False
        self._folder: int | None = None  # open, so that one that is moved away is told from one that is deleted
        with self._translated():
            Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
            self._file = _identity(path)
            if not self._take_if_sound():
                self._mend()

    def _take(self) -> None:
        """Open the file, and note which one it is, and its log of writes."""
        self._connection, self._file = _opened(self._path)
        self._seen, self._log = self._data_version(), _identity(f"{self._path}-wal")
        self._index_size = 0
        self._leave_folder()
        self._folder = os.open(Path(self._path).parent, os.O_RDONLY | os.O_DIRECTORY)

    def _keep_index(self) -> None:
        """Give SQLite's index of the log its length back where something cut it short.

        SQLite has it mapped, and reading a page that is gone would end the process by SIGBUS; an index of zeros it
        makes anew.
        """
        index = f"{self._path}-shm"
        with suppress(FileNotFoundError):
            size = Path(index).stat().st_size
            if size < self._index_size:
                log.warning("The file %s was cut short; SQLite makes it anew.", index)
                os.truncate(index, self._index_size)
            else:
                self._index_size = size

    def _has_log(self) -> bool:
        """False where the log of writes was deleted: what is written into it, nobody will find."""
        return self._log is None or self._log == _identity(f"{self._path}-wal")

    def _leave_folder(self) -> None:
        if self._folder is not None:
            os.close(self._folder)
        self._folder = None

    def get(self, table: str, key: Key) -> Doc | None:
        with self._using() as connection:
            row = connection.execute(SELECT + " AND key = ?", (table, _bound(key))).fetchone()
            return None if row is None else _decoded(*row)

    def list(self, table: str, where: Mapping[str, Any] | None = None) -> list[Doc]:
        wanted = where or {}
        rules.check_equalities(wanted)
        query, values = SELECT, [table]
        for field in [f for f in wanted if (table, f) in rules.INDEXED]:
            query, values = query + BY_FIELD, [*values, table, field, lookups.sought(wanted[field])]
        with self._using() as connection:
            rows = connection.execute(f"{query} ORDER BY key", values).fetchall()
            docs = list(starmap(_decoded, rows))
        return [doc for doc in docs if rules.matches(doc, wanted)]

    def scan(self, table: str, fields: Sequence[str]) -> Iterator[Doc]:
        query = f"SELECT key, {lookups.projection(fields)} FROM documents WHERE name = ?"
        after: list[Key] = []
        while True:
            with self._using() as connection:
                more = f"{query}{' AND key > ?' if after else ''} ORDER BY key LIMIT {PART}"
                rows = connection.execute(more, (table, *after)).fetchall()
            for key, body in rows:
                yield {"_id": key, **dict(msgspec.json.decode(body))}
            if len(rows) < PART:
                return
            after = [rows[-1][0]]

    def changed(
        self, tables: Sequence[str], since: int | None
    ) -> tuple[int, Mapping[tuple[str, Key], Doc | None] | None]:
        with self._using() as connection:
            now: int = connection.execute("SELECT ifnull(max(number), 0) FROM changes").fetchone()[0]
            # Fewer than before: the file was restored from a copy, or was indexed anew.
            if since is None or not 0 <= now - since < lookups.FOLLOWED_CHANGES or not lookups.are_current(connection):
                return now, None
            rows = [row for row in connection.execute(CHANGED, (since,)) if row[0] in tables]
            # A key that a user's own program wrote may be one that no row can be read by.
            if not all(isinstance(key, str | int) for _, key, _ in rows):
                return now, None
            return now, {(name, key): None if body is None else _decoded(key, body) for name, key, body in rows}

    def insert(self, table: str, doc: Doc) -> None:
        row = _row(table, rules.checked(doc))
        with self._using() as connection:
            connection.execute(INSERT, row)
        if table == "jobs":
            self._woken.set()

    def update(self, table: str, key: Key, expect: Mapping[str, Any], changes: Mapping[str, Any]) -> Doc:
        rules.check_changes(changes)
        with self._writing():
            return self._update(table, key, expect, changes)

    def update_many(self, table: str, updates: Sequence[tuple[Key, Mapping[str, Any], Mapping[str, Any]]]) -> int:
        changed = 0
        with self._writing():
            for key, expect, changes in updates:
                rules.check_changes(changes)
                with suppress(Conflict):
                    self._update(table, key, expect, changes)
                    changed += 1
        return changed

    def put(self, table: str, doc: Doc) -> None:
        row = _row(table, rules.checked(doc))
        with self._using() as connection:
            connection.execute(REPLACE, row)

    def put_many(self, table: str, docs: Sequence[Doc]) -> None:
        rows = [_row(table, rules.checked(doc)) for doc in docs]
        with self._writing() as connection:
            connection.executemany(REPLACE, rows)

    def delete(self, table: str, key: Key, expect: Mapping[str, Any] | None = None) -> None:
        with self._writing() as connection:
            self._expected(table, key, expect or {})
            connection.execute("DELETE FROM documents WHERE name = ? AND key = ?", (table, key))

    def remove(self, table: str, keys: Sequence[Key], expect: Mapping[str, Any] | None = None) -> int:
        rules.check_equalities(expect or {})
        removed = 0
        for at in range(0, len(keys), PART):
            with self._writing() as connection:
                for key in keys[at : at + PART]:
                    with suppress(Conflict):
                        self._expected(table, key, expect or {})
                        connection.execute("DELETE FROM documents WHERE name = ? AND key = ?", (table, key))
                        removed += 1
                connection.execute(lookups.FORGET_CHANGES)
        return removed

    def compact(self) -> None:
        with self._using() as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def append_events(self, events: Sequence[Doc]) -> None:
        rows = [_row(EVENTS, rules.checked(event)) for event in events]
        with self._writing() as connection:
            connection.executemany(INSERT, rows)

    def events_after(self, seq: int, limit: int = 1000) -> Sequence[Doc]:
        with self._using() as connection:
            query = f"SELECT key, body FROM documents WHERE name = ? AND key > ? AND {NUMBERED} ORDER BY key LIMIT ?"
            return list(starmap(_decoded, connection.execute(query, (EVENTS, seq, limit))))

    def last_event(self) -> int:
        with self._using() as connection:
            query = f"SELECT max(key) FROM documents WHERE name = ? AND {NUMBERED}"
            row = connection.execute(query, (EVENTS,)).fetchone()
        return row[0] or 0

    def wait(self, seconds: float) -> bool:
        if self._closed:
            return False
        deadline = time.monotonic() + seconds
        while not self._woken.wait(min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))):
            if self._changed_elsewhere():
                return True
            if time.monotonic() >= deadline:
                return False
        self._woken.clear()
        return not self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._woken.set()
            self._connection.close()
            self._leave_folder()

    def _expected(self, table: str, key: Key, expect: Mapping[str, Any]) -> Doc:
        """The document under `key`, read inside the caller's transaction; `Conflict` if it is not as expected."""
        rules.check_equalities(expect)
        row = self._connection.execute(SELECT + " AND key = ?", (table, _bound(key))).fetchone()
        if row is None:
            raise Conflict(f"There is no {key!r} in {table}.")
        doc = _decoded(*row)
        if not rules.matches(doc, expect):
            raise Conflict(f"{key!r} in {table} has changed: read it again.")
        return doc

    def _unreadable(self, table: str, key: Key) -> bool:
        """True if the row is no JSON object, so that a change would put another document in its place."""
        row = self._connection.execute(f"{SELECT} AND key = ?", (table, key)).fetchone()
        return row is not None and _json_object(row[1]) is None

    def _update(self, table: str, key: Key, expect: Mapping[str, Any], changes: Mapping[str, Any]) -> Doc:
        """Change one document inside the caller's transaction."""
        doc = self._expected(table, key, expect)
        if doc.keys() == {"_id"} and self._unreadable(table, key):
            raise Rejected(f"The row {key!r} of {table} is no JSON object that can be read: correct or delete it.")
        doc.update(changes)
        doc["version"] = _next_version(doc.get("version"))
        row = (_encoded(doc), table, key)
        self._connection.execute("UPDATE documents SET body = ? WHERE name = ? AND key = ?", row)
        return doc

    def _data_version(self) -> int:
        """A number that changes when another connection commits."""
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def _changed_elsewhere(self) -> bool:
        with self._lock, self._translated():
            if self._closed:
                return False
            self._keep_index()
            before, self._seen = self._seen, self._data_version()
            return self._seen != before

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._translated():
            self._follow()
            self._keep_index()
            try:
                yield self._connection
            except (sqlite3.Error, msgspec.DecodeError) as error:
                if not salvage.is_damage(error):
                    raise
                self._mend()
                raise Transient(
                    f"The file {self._path} was damaged; what could be read of it is in a new one."
                ) from error

    def _follow(self) -> None:
        """Open the file anew if another one has taken its place; write it back if it was deleted."""
        there = _identity(self._path)
        if self._closed or (there == self._file and self._has_log()):
            return
        if there is None and self._folder is not None and (place := _moved_to(self._folder, Path(self._path).parent)):
            raise Transient(
                f"The folder {Path(self._path).parent} was moved away (to {place}): move it back. Nothing is decided "
                "until then; what trains, trains on."
            )
        with salvage.alone(Path(self._path)):  # where another process mends it, no file may be there for a moment
            there = _identity(self._path)
            without_log = there == self._file and not self._has_log()
            if there is None or without_log:
                salvage.write_back(self._connection, Path(self._path))
                what = f"{self._path}-wal" if without_log else self._path
                log.warning("The file %s was deleted; it is written back as it was.", what)
            else:
                log.warning("Another file has taken the place of %s; it is read from now on.", self._path)
            self._connection.close()
            own_log = without_log or self._log == _identity(f"{self._path}-wal")
            salvage.come_back(Path(self._path), own_log)
            self._file = _identity(self._path)
            sound = self._take_if_sound()
        if not sound:
            self._mend()
        self._woken.set()

    def _take_if_sound(self) -> bool:
        """Open the file; False if it is damaged."""
        try:
            self._take()
        except sqlite3.Error as error:
            if not (salvage.is_damage(error) and salvage.is_ours(Path(self._path))):
                raise
            return False
        return True

    def _mend(self) -> None:
        """Set the damaged file aside, and take over what can be read into a new one, unless another process has."""
        with suppress(AttributeError):  # it could not even be opened
            self._connection.close()
        with salvage.alone(Path(self._path)):
            if _identity(self._path) == self._file:
                try:
                    salvage.renew(Path(self._path), _connect, INSERT)
                except Transient:
                    self._connection = _unprepared(self._path)  # the next use meets the damage again
                    self._log = None
                    raise
            self._take()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        # IMMEDIATE takes the write lock before the read: no other process can come between the two.
        with self._using() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise Conflict("A document with this `_id` exists already.") from error
        except sqlite3.ProgrammingError as error:
            raise Transient(f"The store {self._path} is closed.") from error
        except sqlite3.Error as error:
            raise _translation(self._path, error) from error
        except OSError as error:
            sentence = f"The folder of {self._path} cannot be made ({error.strerror}): name another file."
            raise Rejected(sentence) from error


def _identity(path: str) -> tuple[int, int] | None:
    """Which file it is; None if there is none."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _moved_to(opened: int, folder: Path) -> str | None:
    """Return where the folder with this descriptor is now; None if it is still at `folder`, or was deleted."""
    found = os.fstat(opened)
    if _identity(str(folder)) == (found.st_dev, found.st_ino):
        return None
    place = str(Path(f"/proc/self/fd/{opened}").readlink())
    return None if found.st_nlink == 0 or place.endswith(" (deleted)") else place


def _opened(path: str) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
    """The connection, and the file that it has really opened: another process may put another one there meanwhile."""
    while True:
        before, connection = _identity(path), _connect(path)
        if _identity(path) == before:
            return connection, before
        connection.close()


def _unprepared(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _make_private(path: str) -> None:
    """Keep the file from other users: it holds the environments of jobs. `Rejected` if it is another user's."""
    me = os.geteuid()
    for name in (path, f"{path}-wal", f"{path}-shm"):
        try:
            there = Path(name).stat()
        except OSError:
            continue
        if me not in (0, there.st_uid):
            raise Rejected(f"The store {path} belongs to user {there.st_uid}: run as that one, or name another store.")
        if stat.S_ISREG(there.st_mode) and there.st_mode & 0o077 and me == there.st_uid:
            Path(name).chmod(there.st_mode & 0o700)


def _connect(path: str) -> sqlite3.Connection:
    if path != ":memory:":
        with suppress(OSError):  # SQLite says why a file cannot be made
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # its logs get the same mode
    connection = _unprepared(path)
    try:
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(SCHEMA)
        lookups.prepare(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log, also where other processes create the same file now."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait for this lock: the switch needs the file alone, and refuses at once.
            if error.sqlite_errorcode & 0xFF not in PASSING or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _translation(path: str, error: sqlite3.Error) -> Transient | Rejected:
    # The lowest byte is the kind; the rest is detail.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in PASSING:
        return Transient(f"Another process keeps {path} locked: try again.")
    if code in DISK:
        mend = "free some space" if code == sqlite3.SQLITE_FULL else "make room there, or look at the disk"
        return Transient(f"The disk refuses to write {path} ({error}): {mend}, then try again.")
    if code in salvage.DAMAGED:
        return Rejected(f"The file {path} is not a sound SQLite database: move it away or name another file.")
    return Rejected(f"The file {path} cannot be used as a store ({error}): make it writable or name another file.")


def _bound(key: Key) -> Key:
    """A key as SQLite has it. Ours are texts and whole numbers; a user's own program may have written others."""
    if isinstance(key, bool) or not isinstance(key, str | int | float | bytes):
        raise Rejected(f"The `_id` {show(key)} cannot be used here: use text or a whole number.")
    rules.check_value(key)
    return key


def _row(table: str, doc: Doc) -> tuple[str, Key, str]:
    return table, _bound(doc["_id"]), _encoded(doc)


def _encoded(doc: Doc) -> str:
    said = {**doc, "_id": None} if isinstance(doc["_id"], bytes) else doc  # for which JSON has no word
    # json, not msgspec: it refuses what JSON has no word for, where msgspec would turn it into text.
    try:
        body = json.dumps(said, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise Rejected(f"The document {doc['_id']!r} cannot be stored as JSON: {error}.") from error
    if len(body) > rules.MAX_BYTES:
        raise Rejected(f"The document {doc['_id']!r} is larger than {rules.MAX_BYTES >> 20} MiB: make it smaller.")
    return body


def _decoded(key: Key, body: str) -> Doc:
    """The document of a row; of one that is no JSON object that can be read only its `_id`.

    One written by hand may say no `_id` or another one, by which it would not be found.
    """
    doc = _json_object(body)
    if doc is None:
        return {"_id": key}
    said = doc.get("_id")
    same: Doc = doc if said == key and type(said) is type(key) else {**doc, "_id": key}
    return same


def _json_object(body: Any) -> Doc | None:
    """The JSON object; None for anything else that a user's own program wrote, such as one that is nested too deep.

    `msgspec.DecodeError` for what nobody can have written, since the file's triggers refuse it.
    """
    try:
        found: Any = msgspec.json.decode(body) if isinstance(body, str | bytes) else None
    except RecursionError:
        return None
    except msgspec.DecodeError:
        if _is_json_to_others(body):
            return None
        raise
    return found if isinstance(found, dict) else None


def _is_json_to_others(body: str | bytes) -> bool:
    """True for what Python or SQLite writes or takes: NaN, 1e999, half a surrogate pair, unquoted keys."""
    with suppress(ValueError):
        json.loads(body)
        return True
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            return connection.execute("SELECT json_type(?)", (body,)).fetchone()[0] is not None
        except sqlite3.Error:
            return False


def _next_version(version: Any) -> Any:
    """One more; a `version` of the user's that is no number counts as none."""
    return version + 1 if isinstance(version, int | float) and not isinstance(version, bool) else 1
