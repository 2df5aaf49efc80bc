"""`Store` on a MongoDB server, by pymongo's synchronous client. Users insert their jobs there directly.

Each change is one `find_one_and_update` with what it expects in its filter, acknowledged by the
majority and the journal. A reply that was lost is never asked for twice: the caller gets
`Transient` and reads again (`reliability.md` 3). Opened by `opening.open_store`. Imports no other store.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import bson
import pymongo
from bson import Int64, ObjectId
from bson.codec_options import TypeDecoder, TypeRegistry
from bson.errors import BSONError
from pymongo import errors, uri_parser
from pymongo.collection import Collection
from pymongo.synchronous.change_stream import ChangeStream
from pymongo.write_concern import WriteConcern

from coordinator.errors import Conflict, Rejected, Transient
from coordinator.ports import Doc, Key
from coordinator.stores import rules

DATABASE = "reshape"
EVENTS = "events"
ANSWER_MS = 5000  # a server that does not answer for so long counts as down
READ_MS = 15000  # must outlast a slow majority write, or its outcome is unknown for nothing
MAJORITY = WriteConcern(w="majority", j=True, wtimeout=10000)
WATCH_MS = 500  # the longest that one look at the change stream may block
BATCH = 10_000  # documents in one reply of `list`, as far as 16 MiB hold them
LOOK_SECONDS = 0.25  # pause between looks, for servers that answer at once
RETRY_SECONDS = 1.0
LISTS = ("jobs",)  # not indexed: nx-27017 then finds no element of a list; people ask for it, no loop does
PART = 1_000  # documents of one part of `scan`, `remove` or `changed`
LISTED: dict[str, Doc] = {"jobs": {"closed": {"$ne": True}}}  # what `changed` follows of a table; all rows of others
DIGEST = 16  # bytes: that two rows share one will not happen

log = logging.getLogger(__name__)


class PlainInt(TypeDecoder):
    """Whole numbers of 64 bits as `int`: pymongo's own subclass of it is unknown to our JSON encoder."""

    bson_type = Int64

    def transform_bson(self, value: int) -> int:
        return int(value)


# Set only where the user's URL says nothing about them.
DEFAULTS: dict[str, Any] = {
    "appname": "reshape",
    "serverSelectionTimeoutMS": ANSWER_MS,
    "connectTimeoutMS": ANSWER_MS,
    "socketTimeoutMS": READ_MS,
    # One job with an impossible date or broken text must not hide all others.
    "datetime_conversion": "DATETIME_AUTO",
    "unicode_decode_error_handler": "replace",
    "type_registry": TypeRegistry([PlainInt()]),
}

DUPLICATE_KEY = 11000
TYPE_MISMATCH = 14
# Server trouble that passes: internal, unknown, time limit, write concern, shutdown, write conflict,
# step-down, exceeded limit, interrupted; None where a server gave no code.
PASSING = frozenset({None, 1, 8, 50, 64, 91, 112, 189, 262, 11600, 11602})


class MongoStore:
    """See `coordinator.ports.Store`. Constructing it asks no server: the first call does."""

    def __init__(self, url: str, client: pymongo.MongoClient[Doc] | None = None) -> None:
        """`url` names servers and database; tests give a `client`. `Rejected` if `url` is wrong."""
        with _rejecting_bad_urls():
            parsed = uri_parser.parse_uri(url)
            self._client = client if client is not None else _connect(url, parsed["options"])
            self._database = self._client.get_database(parsed["database"] or DATABASE, write_concern=MAJORITY)
        self._place = ", ".join(f"{host}:{port}" for host, port in parsed["nodelist"])
        self._woken = threading.Event()
        self._closed = threading.Event()
        self._watch_lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._readings = itertools.count(1)
        # Of each followed table the number of its last reading, and the key of each row by the digest of its bytes.
        self._keys: dict[str, tuple[int, dict[bytes, Key]]] = {}
        self._indexed: set[tuple[str, str]] = set()  # (table, field) of which an index was asked for

    def get(self, table: str, key: Key) -> Doc | None:
        wanted = _filter(key, {})
        with self._translated():
            return self._table(table).find_one(wanted)

    def list(self, table: str, where: Mapping[str, Any] | None = None) -> list[Doc]:
        rules.check_equalities(where or {})
        for field in where or ():
            self._index(table, field)
        with self._translated():
            docs = [*self._table(table).find(dict(where or {}), batch_size=BATCH)]
        # Sorted here: servers disagree on the order of keys of several types.
        return sorted(docs, key=_order)

    def scan(self, table: str, fields: Sequence[str]) -> Iterator[Doc]:
        with self._translated():
            yield from self._table(table).find({}, ["_id", *fields], batch_size=PART)

    def changed(
        self, tables: Sequence[str], since: int | None
    ) -> tuple[int, Mapping[tuple[str, Key], Doc | None] | None]:
        """Read all rows, since users may change one without counting its version up, but decode only what differs."""
        number, known = next(self._readings), since is not None
        found = dict[tuple[str, Key], Doc | None]()
        for table in tables:
            at, before = self._keys.pop(table, (None, {}))  # after an error all is read
            with self._translated():
                try:
                    keys, rows = self._differing(table, before)
                except NotImplementedError:  # mongomock
                    return number, None
            if all(map(_is_plain, keys.values())) and len({*keys.values()}) == len(keys):
                self._keys[table] = number, keys
            known &= at == since and table in self._keys
            found |= {(table, key): doc for key, doc in rows.items()} if known else {}
        return number, found if known else None

    def _differing(self, table: str, before: Mapping[bytes, Key]) -> tuple[dict[bytes, Key], dict[Key, Doc | None]]:
        """The keys of a table's rows by the digests of their bytes, and the rows of which `before` holds no digest."""
        collection, keys, new = self._table(table), dict[bytes, Key](), list[Doc]()
        # mypy: pymongo types these batches as documents.
        batches: Any = collection.find_raw_batches(LISTED.get(table, {}), batch_size=BATCH)
        for batch in batches:
            for raw in _documents(batch):
                digest = hashlib.blake2b(raw, digest_size=DIGEST).digest()
                if digest not in before:
                    new.append(bson.decode(raw, collection.codec_options))
                keys[digest] = before[digest] if digest in before else new[-1]["_id"]
        if not before:
            return keys, {doc["_id"]: doc for doc in new if _is_plain(doc["_id"])}
        gone = list({*before.values()}.difference(key for key in keys.values() if _is_plain(key)))
        parts = (gone[at : at + PART] for at in range(0, len(gone), PART))
        left = (doc for part in parts for doc in collection.find({"_id": {"$in": part}}))  # that is listed no more
        return keys, {**dict.fromkeys(gone), **{doc["_id"]: doc for doc in (*left, *new) if _is_plain(doc["_id"])}}

    def insert(self, table: str, doc: Doc) -> None:
        checked = rules.checked(doc)
        with self._translated():
            self._table(table).insert_one(checked)

    def update(self, table: str, key: Key, expect: Mapping[str, Any], changes: Mapping[str, Any]) -> Doc:
        wanted, change = _filter(key, expect), _change(changes)
        with self._translated():
            doc = self._changed(table, wanted, change) or self._changed_without_count(table, wanted, changes)
        if doc is None:
            raise Conflict(f"{key!r} in {table} has changed or is gone: read it again.")
        return doc

    def update_many(self, table: str, updates: Sequence[tuple[Key, Mapping[str, Any], Mapping[str, Any]]]) -> int:
        each = [(_filter(key, expect), _change(changes)) for key, expect, changes in updates]
        with self._translated():
            try:
                parts = [pymongo.UpdateOne(wanted, change) for wanted, change in each]
                return self._table(table).bulk_write(parts, ordered=False).matched_count
            except TypeError:  # mongomock, which has not kept up with pymongo
                return sum(self._changed(table, wanted, change) is not None for wanted, change in each)

    def put(self, table: str, doc: Doc) -> None:
        checked = rules.checked(doc)
        with self._translated():
            self._table(table).replace_one({"_id": checked["_id"]}, checked, upsert=True)

    def put_many(self, table: str, docs: Sequence[Doc]) -> None:
        checked = [rules.checked(doc) for doc in docs]
        if not checked:
            return
        with self._translated():
            parts = [pymongo.ReplaceOne({"_id": doc["_id"]}, doc, upsert=True) for doc in checked]
            try:
                self._table(table).bulk_write(parts, ordered=False)
            except TypeError:  # mongomock, which has not kept up with pymongo
                for doc in docs:
                    self.put(table, doc)

    def delete(self, table: str, key: Key, expect: Mapping[str, Any] | None = None) -> None:
        wanted = _filter(key, expect or {})
        with self._translated():
            deleted = self._table(table).delete_one(wanted).deleted_count
        if not deleted:
            raise Conflict(f"{key!r} in {table} has changed or is gone: read it again.")

    def remove(self, table: str, keys: Sequence[Key], expect: Mapping[str, Any] | None = None) -> int:
        rules.check_equalities(expect or {})
        removed = 0
        for at in range(0, len(keys), PART):
            wanted: Doc = {**(expect or {}), "_id": {"$in": list(keys[at : at + PART])}}
            with self._translated():
                removed += self._table(table).delete_many(wanted).deleted_count
        return removed

    def compact(self) -> None:
        """Nothing to do: the server uses the space of removed rows again."""

    def append_events(self, events: Sequence[Doc]) -> None:
        checked = [rules.checked(event) for event in events]
        if not checked:
            return
        with self._translated():
            self._table(EVENTS).insert_many(checked)

    def events_after(self, seq: int, limit: int = 1000) -> Sequence[Doc]:
        later = {"_id": {"$gt": seq, "$lte": rules.LAST_EVENT}}
        with self._translated():
            return [*self._table(EVENTS).find(later).sort("_id", 1).limit(limit)]

    def last_event(self) -> int:
        # Numbers only: a foreign document must not break the count.
        with self._translated():
            last = [*self._table(EVENTS).find({"_id": {"$gte": 0, "$lte": rules.LAST_EVENT}}).sort("_id", -1).limit(1)]
        return last[0]["_id"] if last else 0

    def wait(self, seconds: float) -> bool:
        if self._closed.is_set():
            return False
        self._start_watching()
        changed = self._woken.wait(seconds)
        self._woken.clear()
        return changed and not self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        self._woken.set()
        with self._watch_lock:
            if self._watcher is not None:
                self._watcher.join(2 * WATCH_MS / 1000)
        self._client.close()

    def _table(self, table: str) -> Collection[Doc]:
        return self._database[table]

    def _index(self, table: str, field: str) -> None:
        """Ask once for the index that a listing by this field wants; without it the same rows are found slowly."""
        if (table, field) not in rules.INDEXED or (table, field) in self._indexed or field in LISTS:
            return
        self._indexed.add((table, field))
        try:
            self._table(table).create_index(field)
        except errors.PyMongoError as error:
            log.info("no index of %s by %s: %s", table, field, error)

    def _changed(self, table: str, wanted: Doc, change: Doc) -> Doc | None:
        try:
            # mypy: pymongo types the result as the document, though it may be None.
            found: Doc | None = self._table(table).find_one_and_update(wanted, change, return_document=True)
        except errors.OperationFailure as error:
            if error.code != TYPE_MISMATCH:
                raise
            return None
        return found

    def _changed_without_count(self, table: str, wanted: Doc, changes: Mapping[str, Any]) -> Doc | None:
        """The same change for a document whose own `version` is no number and so cannot be counted up."""
        found = self._table(table).find_one(wanted)
        version = None if found is None else found.get("version")
        if found is None or (isinstance(version, int | float) and not isinstance(version, bool)):
            return None
        return self._changed(table, {**wanted, "version": version}, {"$set": {**changes, "version": 1}})

    def _start_watching(self) -> None:
        with self._watch_lock:
            if self._watcher is None and not self._closed.is_set():
                self._watcher = threading.Thread(target=self._watch, name="store-watch", daemon=True)
                self._watcher.start()

    def _watch(self) -> None:
        """Wake `wait` at each new job until closed; end at once where the server cannot watch."""
        while not self._closed.is_set():
            try:
                inserts: Sequence[Doc] = [{"$match": {"operationType": "insert"}}]
                with self._table("jobs").watch(inserts, max_await_time_ms=WATCH_MS) as stream:
                    # Jobs may have been inserted before the watch began.
                    self._woken.set()
                    self._follow(stream)
            except errors.ConnectionFailure:
                self._closed.wait(RETRY_SECONDS)
            except (errors.PyMongoError, TypeError):
                # No change streams here: a server alone refuses them, mongomock has no such method.
                return

    def _follow(self, stream: ChangeStream[Doc]) -> None:
        while not self._closed.is_set():
            if stream.try_next() is not None:
                self._woken.set()
            else:
                self._closed.wait(LOOK_SECONDS)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except errors.DuplicateKeyError as error:
            raise Conflict("A document with this `_id` exists already.") from error
        except (errors.DocumentTooLarge, BSONError, ValueError, OverflowError) as error:
            raise Rejected(f"MongoDB cannot keep this document: {str(error)[:200]}") from error
        except errors.OperationFailure as error:
            raise self._translation(error) from error
        except errors.PyMongoError as error:
            raise Transient(f"The database at {self._place} does not answer: see that it runs.") from error

    def _translation(self, error: errors.OperationFailure) -> Conflict | Transient | Rejected:
        details = error.details or {}
        failures = details.get("writeErrors") or [{"code": error.code, "errmsg": details.get("errmsg", "")}]
        code, reason = failures[0].get("code"), str(failures[0].get("errmsg"))[:200]
        if code == DUPLICATE_KEY:
            return Conflict("A document with this `_id` exists already.")
        passing = code in PASSING or isinstance(error, errors.WriteConcernError) or details.get("writeConcernErrors")
        if passing or error.has_error_label("RetryableWriteError"):
            return Transient(f"The database at {self._place} has trouble, try again: {reason}")
        return Rejected(f"The database at {self._place} refuses: {reason}")


def _connect(url: str, given: Mapping[str, Any]) -> pymongo.MongoClient[Doc]:
    options = {name: value for name, value in DEFAULTS.items() if name not in given}
    # pymongo would send a write again whose reply was lost: only the caller may decide that.
    return pymongo.MongoClient(url, retryWrites=False, **options)


@contextmanager
def _rejecting_bad_urls() -> Iterator[None]:
    try:
        yield
    except (errors.PyMongoError, ValueError, TypeError):
        # Neither the URL nor pymongo's words about it: they may hold the password.
        sentence = (
            f"The store URL is wrong: write mongodb://host:27017/{DATABASE}, with any special characters"
            " of a user name or password percent-encoded, or sqlite:///reshape.db."
        )
        raise Rejected(sentence) from None


def _filter(key: Key, expect: Mapping[str, Any]) -> Doc:
    wanted = {**expect, "_id": key}
    rules.check_equalities(wanted)
    return wanted


def _change(changes: Mapping[str, Any]) -> Doc:
    rules.check_changes(changes)
    return {"$inc": {"version": 1}, **({"$set": dict(changes)} if changes else {})}


def _order(doc: Doc) -> tuple[int, float, str]:
    key = doc["_id"]
    if isinstance(key, int | float):
        return 0, key, ""
    return (1, 0, key) if isinstance(key, str) else (2, 0, repr(key))


def _documents(batch: bytes) -> Iterator[bytes]:
    """The documents of a reply; each begins with its length."""
    at = 0
    while at < len(batch):
        end = at + int.from_bytes(batch[at : at + 4], "little")
        yield batch[at:end]
        at = end


def _is_plain(key: Key) -> bool:
    """True if a row is surely found by this `_id`, and no other row has one that Python takes for the same."""
    return type(key) in (int, ObjectId) or (type(key) is str and "\ufffd" not in key)  # put for broken text
