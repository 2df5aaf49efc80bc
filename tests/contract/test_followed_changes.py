"""`Store.changed` tells of every row that came, changed or went, whoever wrote it; users count no `version`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pymongo
import pytest
from bson import Int64, ObjectId

from coordinator.errors import Transient
from coordinator.ports import Doc, Store
from coordinator.stores import mongo
from coordinator.stores.cache import Cache
from coordinator.stores.mongo import MongoStore
from coordinator.stores.opening import open_store
from tests.unit.coordinator.test_cache_follows import agrees_after_each_change

BOTH = ("jobs", "gpus")
OPEN = {"uid": "u", "closed": False, "state": "running", "version": 1}


class Followed:
    """A store that is followed, and what its users do to it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.number, rows = store.changed(BOTH, None)
        assert rows is None, "nothing is known yet"

    def news(self) -> dict[Any, Doc | None]:
        self.number, rows = self.store.changed(BOTH, self.number)
        assert rows is not None
        return {key: doc for (_, key), doc in rows.items()}


@pytest.fixture
def followed(store: Store, adapter: str) -> Followed:
    if adapter == "mongomock":
        pytest.skip("mongomock gives no documents as bytes, so all is read")
    store.insert("jobs", {"_id": "a", **OPEN})
    store.insert("gpus", {"_id": "g", "node": "n"})
    return Followed(store)


def test_only_what_came_changed_or_went_is_told_and_each_once(followed: Followed) -> None:
    store = followed.store
    assert followed.news() == {}
    store.insert("jobs", {"_id": "b", **OPEN})
    store.put("gpus", {"_id": "g", "node": "m"})  # a user's change: there is no version to count
    assert followed.news() == {"b": {"_id": "b", **OPEN}, "g": {"_id": "g", "node": "m"}}
    assert followed.news() == {}
    store.remove("jobs", ["a"])
    store.remove("gpus", ["g"])
    assert followed.news() == {"a": None, "g": None}
    assert followed.news() == {}


def test_a_job_that_has_ended_or_was_opened_again_is_told_as_it_is_now(followed: Followed) -> None:
    ended = followed.store.update("jobs", "a", {}, {"closed": True})
    assert followed.news() == {"a": ended}
    opened = followed.store.update("jobs", "a", {}, {"closed": False})
    assert followed.news() == {"a": opened}
    unset = followed.store.update("jobs", "a", {}, {"closed": None})
    assert followed.news() == {"a": unset}


def test_what_changed_and_was_changed_back_since_is_as_it_was(followed: Followed) -> None:
    followed.store.put("gpus", {"_id": "g", "node": "m"})
    followed.store.put("gpus", {"_id": "g", "node": "n"})
    assert followed.news() in ({}, {"g": {"_id": "g", "node": "n"}})


def test_by_another_number_than_the_last_nothing_is_known(followed: Followed, adapter: str) -> None:
    if adapter == "sqlite":
        pytest.skip("it knows what changed since any number of the last 10,000")
    followed.news()
    assert followed.store.changed(BOTH, followed.number - 1)[1] is None
    assert followed.store.changed(BOTH, followed.number + 7)[1] is None


# on a server of MongoDB's protocol


@pytest.fixture
def mongo_url(nx_url: str) -> str:
    return nx_url


@pytest.fixture
def users(mongo_url: str) -> Iterator[pymongo.database.Database[Doc]]:
    """A user's own connection, with nothing of ours."""
    with pymongo.MongoClient[Doc](mongo_url) as client:
        yield client.get_default_database()


def following(url: str) -> Cache:
    cache = Cache(open_store(url))
    cache.refresh()
    return cache


@pytest.mark.parametrize("seed", range(6))
def test_a_cache_that_follows_mongodb_knows_what_one_knows_that_reads_all(mongo_url: str, seed: int) -> None:
    agrees_after_each_change(seed, open_store(mongo_url), open_store(mongo_url), 40)


def test_a_change_by_hand_that_counts_no_version_is_noticed(
    mongo_url: str, users: pymongo.database.Database[Doc]
) -> None:
    cache = following(mongo_url)
    users["jobs"].insert_one({"_id": "new", "state": "submitted", "command": "train", "optional_num_gpus": [1]})
    assert [job.key for job in cache.refresh()] == ["new"]
    users["jobs"].insert_one({"_id": "one", "job_id": "one", **OPEN})
    cache.refresh()
    users["jobs"].update_one({"_id": "one"}, {"$set": {"cancel": True}})
    cache.refresh()
    (job,) = cache.jobs().values()
    assert job.cancel and job.doc["version"] == 1


def test_what_has_not_changed_is_neither_decoded_nor_read_one_by_one(
    mongo_url: str, users: pymongo.database.Database[Doc], monkeypatch: pytest.MonkeyPatch
) -> None:
    users["jobs"].insert_many([{"_id": f"j{n}", "job_id": f"j{n}", **OPEN} for n in range(30)])
    users["gpus"].insert_many([{"_id": f"g{n}", "node": "n", "state": "idle"} for n in range(30)])
    cache, decoded = following(mongo_url), list[Any]()
    decode = mongo.bson.decode

    def noted(raw: bytes, options: Any) -> Doc:
        doc: Doc = decode(raw, options)
        decoded.append(doc["_id"])
        return doc

    monkeypatch.setattr(mongo.bson, "decode", noted)
    monkeypatch.setattr(MongoStore, "get", lambda self, table, key: 1 / 0)
    users["gpus"].update_one({"_id": "g7"}, {"$set": {"state": "faulty"}})
    cache.refresh()
    assert (decoded, cache.gpus()["g7"].state) == (["g7"], "faulty")


@pytest.mark.parametrize(("rows", "part"), [(7, 3), (1, 1_000)])
def test_rows_of_several_replies_and_parts_are_told_once_each(
    mongo_url: str, users: pymongo.database.Database[Doc], monkeypatch: pytest.MonkeyPatch, rows: int, part: int
) -> None:
    monkeypatch.setattr(mongo, "BATCH", part)
    monkeypatch.setattr(mongo, "PART", part)
    followed = Followed(open_store(mongo_url))
    docs = [{"_id": f"j{n}", **OPEN, "text": "x" * n * 1_000} for n in range(rows)]
    users["jobs"].insert_many(docs)
    assert followed.news() == {doc["_id"]: doc for doc in docs}
    users["jobs"].delete_many({})
    assert followed.news() == {doc["_id"]: None for doc in docs}


@pytest.mark.parametrize("key", [True, 1.5, {"a": 1}])
def test_while_there_is_a_row_with_a_key_that_python_may_confuse_all_is_read(
    mongo_url: str, users: pymongo.database.Database[Doc], key: Any
) -> None:
    followed = Followed(open_store(mongo_url))
    users["gpus"].insert_one({"_id": key, "node": "n"})
    for _ in range(2):
        followed.number, rows = followed.store.changed(BOTH, followed.number)
        assert rows is None
    users["gpus"].delete_many({})
    followed.number, _ = followed.store.changed(BOTH, followed.number)
    assert followed.news() == {}


def test_rows_with_keys_that_the_server_gave_are_followed(
    mongo_url: str, users: pymongo.database.Database[Doc]
) -> None:
    followed, key = Followed(open_store(mongo_url)), ObjectId()
    users["jobs"].insert_one({"_id": key, **OPEN})
    assert followed.news() == {key: {"_id": key, **OPEN}}


def test_a_row_with_values_that_only_mongodb_has_is_told_as_it_is_read(
    mongo_url: str, users: pymongo.database.Database[Doc]
) -> None:
    followed = Followed(open_store(mongo_url))
    odd = {"when": datetime(9999, 12, 31, tzinfo=UTC), "long": Int64(7), "of": [ObjectId(), {"raw": b"\0\1"}]}
    users["gpus"].insert_one({"_id": "odd", **odd})
    told, read = followed.news()["odd"], followed.store.get("gpus", "odd")
    assert told is not None and read is not None
    assert told == read
    assert {field: type(value) for field, value in told.items()} == {
        field: type(value) for field, value in read.items()
    }


def test_after_an_error_all_is_read(mongo_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(mongo_url)
    assert isinstance(store, MongoStore)
    followed, differing = Followed(store), store._differing
    followed.news()
    store.insert("jobs", {"_id": "j", **OPEN})

    def broken(table: str, before: Any) -> Any:
        if table == "gpus":
            raise pymongo.errors.AutoReconnect("gone")
        return differing(table, before)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_differing", broken)
        with pytest.raises(Transient):
            followed.news()
    followed.number, rows = store.changed(BOTH, followed.number)
    assert rows is None
    assert followed.news() == {}


def test_a_table_that_is_dropped_is_told_row_by_row_and_so_taken_for_lost(
    mongo_url: str, users: pymongo.database.Database[Doc]
) -> None:
    store = open_store(mongo_url)
    lost = list[bool]()
    cache = Cache(store, lambda rows: lost.append(rows) or not rows)  # type: ignore[func-returns-value]
    users["jobs"].insert_many([{"_id": f"{uuid.uuid4().hex}", **OPEN} for _ in range(3)])
    for doc in users["jobs"].find():
        users["jobs"].update_one({"_id": doc["_id"]}, {"$set": {"job_id": doc["_id"]}})
    cache.refresh()
    users["jobs"].drop()
    with pytest.raises(Transient):
        cache.refresh()
    assert lost[-1] and len(cache.jobs()) == 3
