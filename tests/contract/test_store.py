"""The contract of `coordinator.ports.Store`, tried on every adapter; the cases an adapter may skip say why."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from coordinator.errors import Conflict, Rejected
from coordinator.ports import Store
from coordinator.stores import rules

RICH: dict[str, Any] = {
    "_id": "rich",
    "whole": 7,
    "large": 2**62 + 1,
    "float": 1.0,
    "sum": 0.1 + 0.2,
    "huge": 1e300,
    "yes": True,
    "nothing": None,
    "text": "naïve 日本 \U0001f600 \u202ertl",
    "nul": "a\0b",
    "list": [1, 2.5, None, "x", False, {"deep": [3]}],
    "nested": {"a": {"b": {"c": []}}, "ünï": {}},
    "empty": "",
}

BAD: dict[str, Any] = {
    "not a number": math.nan,
    "infinite": {"deep": [-math.inf]},
    "a dotted key": {"a.b": 1},
    "an operator": {"$set": 1},
    "a key with NUL": {"a\0b": 1},
    "a key that is no text": {1: 1},
    "more than 64 bits": 2**63,
    "a lone surrogate": "\ud800",
    "an object": object(),
    "a set": {1},
}


def too_deep() -> dict[str, Any]:
    doc: dict[str, Any] = {}
    for _ in range(rules.MAX_DEPTH):
        doc = {"a": doc}
    return doc


def test_a_document_comes_back_as_it_was_inserted_and_of_the_same_types(store: Store) -> None:
    store.insert("jobs", RICH)
    for doc in (store.get("jobs", "rich"), store.list("jobs")[0], store.update("jobs", "rich", {}, {})):
        assert doc is not None
        doc.pop("version", None)
        assert doc == RICH
        assert {field: type(value) for field, value in doc.items()} == {f: type(v) for f, v in RICH.items()}


def test_what_the_caller_does_to_a_document_afterwards_does_not_reach_the_store(store: Store) -> None:
    doc = {"_id": 1, "gpu_ids": [0]}
    store.insert("jobs", doc)
    doc["gpu_ids"].append(1)  # type: ignore[attr-defined]
    store.list("jobs")[0]["gpu_ids"].append(2)
    assert store.get("jobs", 1) == {"_id": 1, "gpu_ids": [0]}


def test_a_document_that_is_not_there_is_none_and_a_table_nobody_wrote_is_empty(store: Store) -> None:
    assert store.get("jobs", "absent") is None
    assert store.list("jobs") == []
    assert store.events_after(0) == []


def test_the_second_insert_of_one_id_is_a_conflict_and_changes_nothing(store: Store) -> None:
    store.insert("jobs", {"_id": "a", "state": "submitted"})
    with pytest.raises(Conflict):
        store.insert("jobs", {"_id": "a", "state": "running"})
    assert store.get("jobs", "a") == {"_id": "a", "state": "submitted"}


def test_a_document_without_id_gets_one_and_the_callers_copy_stays_as_it_was(store: Store) -> None:
    doc = {"state": "submitted"}
    store.insert("jobs", doc)
    store.insert("jobs", doc)
    assert doc == {"state": "submitted"}
    first, second = store.list("jobs")
    assert isinstance(first["_id"], str)
    assert first["_id"] != second["_id"]


def test_tables_do_not_mix(store: Store) -> None:
    store.insert("jobs", {"_id": 1})
    store.insert("gpus", {"_id": 1, "state": "idle"})
    assert store.list("jobs") == [{"_id": 1}]
    assert store.get("gpus", 1) == {"_id": 1, "state": "idle"}


def test_whole_and_text_keys_are_different_and_come_back_as_given(store: Store, adapter: str) -> None:
    if adapter == "nx":
        pytest.skip('nx-27017 finds the key 1 when asked for "1"')
    store.insert("jobs", {"_id": 1, "is": "whole"})
    store.insert("jobs", {"_id": "1", "is": "text"})
    assert store.get("jobs", 1) == {"_id": 1, "is": "whole"}
    assert store.get("jobs", "1") == {"_id": "1", "is": "text"}


def test_list_is_in_order_of_numbers_then_of_text(store: Store) -> None:
    for key in ("b", 10, "a", 2, "B", 1):
        store.insert("jobs", {"_id": key})
    assert [doc["_id"] for doc in store.list("jobs")] == [1, 2, 10, "B", "a", "b"]


def test_where_selects_by_equality_of_every_field_named(store: Store) -> None:
    store.insert("gpus", {"_id": 0, "state": "idle", "node": "n1", "memory": 16.0})
    store.insert("gpus", {"_id": 1, "state": "idle", "node": "n2", "memory": 32})
    store.insert("gpus", {"_id": 2, "state": "in use", "node": "n1"})
    assert [gpu["_id"] for gpu in store.list("gpus", {"state": "idle"})] == [0, 1]
    assert [gpu["_id"] for gpu in store.list("gpus", {"state": "idle", "node": "n1"})] == [0]
    assert [gpu["_id"] for gpu in store.list("gpus", {"memory": 16})] == [0]
    assert store.list("gpus", {"state": "faulty"}) == []


def test_a_value_is_found_in_a_list_that_holds_it(store: Store, adapter: str) -> None:
    """By this a decision is found under every job that it touches."""
    store.insert("decisions", {"_id": 0, "jobs": ["one", "two"]})
    store.insert("decisions", {"_id": 1, "jobs": ["two"]})
    store.insert("decisions", {"_id": 2, "jobs": []})
    store.insert("decisions", {"_id": 3, "jobs": "one"})
    store.insert("decisions", {"_id": 4})
    assert [doc["_id"] for doc in store.list("decisions", {"jobs": "one"})] == [0, 3]
    assert [doc["_id"] for doc in store.list("decisions", {"jobs": "two"})] == [0, 1]
    assert store.list("decisions", {"jobs": "three"}) == []


def test_none_matches_null_and_missing_alike(store: Store) -> None:
    store.insert("gpus", {"_id": 0, "job_id": None})
    store.insert("gpus", {"_id": 1})
    store.insert("gpus", {"_id": 2, "job_id": 0})
    store.insert("gpus", {"_id": 3, "job_id": ""})
    assert [gpu["_id"] for gpu in store.list("gpus", {"job_id": None})] == [0, 1]
    assert store.update("gpus", 1, {"job_id": None}, {"job_id": 7})["job_id"] == 7
    with pytest.raises(Conflict):
        store.update("gpus", 2, {"job_id": None}, {"job_id": 7})


def test_true_is_not_one(store: Store, adapter: str) -> None:
    if adapter in ("nx", "mongomock"):
        pytest.skip(f"{adapter} takes true for 1")
    store.insert("jobs", {"_id": 1, "flag": True, "number": 1})
    assert store.list("jobs", {"flag": 1}) == []
    assert store.list("jobs", {"number": True}) == []
    assert len(store.list("jobs", {"flag": True, "number": 1})) == 1


def test_an_update_whose_expectation_holds_returns_the_new_document_and_counts_the_version_up(store: Store) -> None:
    store.insert("jobs", {"_id": 0, "state": "submitted", "version": 4, "mine": {"kept": [1, {"x": None}]}})
    new = store.update("jobs", 0, {"state": "submitted", "version": 4}, {"state": "running", "gpu_ids": [0, 1]})
    expected = {"state": "running", "gpu_ids": [0, 1], "version": 5, "mine": {"kept": [1, {"x": None}]}}
    assert new == {"_id": 0, **expected}
    assert store.get("jobs", 0) == new


@pytest.mark.parametrize(("key", "expect"), [(0, {"version": 2}), (0, {"version": 1, "state": "idle"}), (9, {})])
def test_an_update_whose_expectation_does_not_hold_is_a_conflict_and_changes_nothing(
    store: Store, key: int, expect: dict[str, Any]
) -> None:
    store.insert("jobs", {"_id": 0, "state": "running", "version": 1})
    with pytest.raises(Conflict):
        store.update("jobs", key, expect, {"state": "failed"})
    assert store.list("jobs") == [{"_id": 0, "state": "running", "version": 1}]


def test_a_document_without_version_is_at_version_1_after_its_first_update(store: Store) -> None:
    store.insert("jobs", {"_id": "users", "comment": "from a user"})
    assert store.update("jobs", "users", {"version": None}, {"state": "failed"})["version"] == 1
    with pytest.raises(Conflict):
        store.update("jobs", "users", {"version": None}, {"state": "running"})
    assert store.update("jobs", "users", {"version": 1}, {})["version"] == 2


@pytest.mark.parametrize("version", ["2.1", True, None])
def test_a_version_of_the_users_that_is_no_number_does_not_stop_an_update(
    store: Store, adapter: str, version: Any
) -> None:
    if adapter == "mongomock":
        pytest.skip("mongomock raises TypeError where a server refuses to count")
    store.insert("jobs", {"_id": 1, "version": version})
    new = store.update("jobs", 1, {"version": version}, {"problems": ["state is missing"]})
    assert new == store.get("jobs", 1) == {"_id": 1, "version": 1, "problems": ["state is missing"]}


def test_an_update_replaces_a_nested_field_as_a_whole(store: Store) -> None:
    store.insert("jobs", {"_id": 1, "reshape": {"to": [0], "generation": 2}})
    store.update("jobs", 1, {}, {"reshape": {"to": [1]}})
    store.update("jobs", 1, {}, {"code": {}, "text": "a\0b"})
    assert store.get("jobs", 1) == {"_id": 1, "reshape": {"to": [1]}, "code": {}, "text": "a\0b", "version": 2}


def test_put_inserts_and_then_replaces_as_a_whole(store: Store) -> None:
    store.put("terms", {"_id": "coordinator", "term": 1, "old": True})
    store.put("terms", {"_id": "coordinator", "term": 2})
    assert store.list("terms") == [{"_id": "coordinator", "term": 2}]


def test_delete_removes_only_what_is_there_and_as_expected(store: Store) -> None:
    store.insert("gpus", {"_id": 0, "state": "in use"})
    with pytest.raises(Conflict):
        store.delete("gpus", 0, {"state": "idle"})
    store.delete("gpus", 0, {"state": "in use"})
    with pytest.raises(Conflict):
        store.delete("gpus", 0)
    assert store.list("gpus") == []


def test_events_come_back_in_the_order_of_their_numbers(store: Store) -> None:
    assert store.last_event() == 0
    store.append_events([])
    store.append_events([{"_id": seq, "kind": "state", "job": "a"} for seq in range(1, 121)])
    assert store.last_event() == 120
    assert [event["_id"] for event in store.events_after(0)] == list(range(1, 121))
    assert [event["_id"] for event in store.events_after(8, limit=3)] == [9, 10, 11]
    assert [event["_id"] for event in store.events_after(98, limit=4)] == [99, 100, 101, 102]
    assert store.events_after(120) == []


def test_a_document_among_the_events_that_has_no_number_is_none_of_them(store: Store) -> None:
    store.append_events([{"_id": 1, "type": "a"}])
    store.insert("events", {"_id": "by hand", "type": "b"})
    store.append_events([{"_id": 2, "type": "c"}])
    assert store.last_event() == 2
    assert [event["_id"] for event in store.events_after(0)] == [1, 2]


def test_an_event_number_that_is_taken_is_a_conflict(store: Store) -> None:
    store.append_events([{"_id": 1, "by": "first"}])
    with pytest.raises(Conflict):
        store.append_events([{"_id": 1, "by": "second"}, {"_id": 2, "by": "second"}])
    assert store.events_after(0) == [{"_id": 1, "by": "first"}]


@pytest.mark.parametrize("kind", [*BAD, "deeper than 100 levels"])
def test_what_some_server_would_refuse_or_change_is_rejected_by_every_one(
    store: Store, adapter: str, kind: str
) -> None:
    if adapter == "mongomock" and kind in ("an object", "a set"):
        pytest.skip("mongomock encodes nothing")
    value = BAD[kind] if kind in BAD else too_deep()
    store.insert("jobs", {"_id": 1})
    for write in (
        lambda: store.insert("jobs", {"_id": 2, "field": value}),
        lambda: store.put("jobs", {"_id": 1, "field": value}),
        lambda: store.update("jobs", 1, {}, {"field": value}),
        lambda: store.append_events([{"_id": 1, "field": value}]),
    ):
        with pytest.raises(Rejected):
            write()
    assert store.list("jobs") == [{"_id": 1}]
    assert store.events_after(0) == []


def test_a_document_of_more_than_16_mib_is_rejected(store: Store, adapter: str) -> None:
    if adapter == "mongomock":
        pytest.skip("mongomock has no limit")
    with pytest.raises(Rejected):
        store.insert("jobs", {"_id": 1, "log": "x" * (17 * 1024 * 1024)})
    assert store.list("jobs") == []


@pytest.mark.parametrize("value", [{"$ne": None}, [1], {}])
def test_an_operator_or_list_is_no_equality(store: Store, value: Any) -> None:
    store.insert("jobs", {"_id": 1, "state": "running"})
    for call in (
        lambda: store.get("jobs", value),
        lambda: store.list("jobs", {"state": value}),
        lambda: store.update("jobs", 1, {"state": value}, {"state": "failed"}),
        lambda: store.delete("jobs", 1, {"state": value}),
        lambda: store.list("jobs", {"$where": "true"}),
    ):
        with pytest.raises(Rejected):
            call()
    assert store.list("jobs") == [{"_id": 1, "state": "running"}]


@pytest.mark.parametrize("field", ["_id", "version", "reshape.to", "$set"])
def test_an_update_cannot_set_the_key_the_version_or_a_part_of_a_field(store: Store, field: str) -> None:
    store.insert("jobs", {"_id": 1, "reshape": {"to": 1}})
    with pytest.raises(Rejected):
        store.update("jobs", 1, {}, {field: 5})
    assert store.get("jobs", 1) == {"_id": 1, "reshape": {"to": 1}}


def test_threads_that_share_one_store_lose_no_update(store: Store, adapter: str) -> None:
    if adapter == "mongomock":
        pytest.skip("mongomock finds, then updates by `_id` alone: it proves nothing about races")
    store.insert("jobs", {"_id": 1})

    def update_often() -> None:
        for number in range(30):
            store.update("jobs", 1, {}, {"x": number})

    threads = [threading.Thread(target=update_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (store.get("jobs", 1) or {})["version"] == 120


def test_wait_ends_when_the_store_is_closed(store: Store) -> None:
    results: list[bool] = []
    waiter = threading.Thread(target=lambda: results.append(store.wait(3600)), daemon=True)
    waiter.start()
    store.close()
    waiter.join(60)
    assert results == [False]
    assert store.wait(3600) is False


def test_wait_ends_when_the_time_is_over(store: Store) -> None:
    # The first may end early: a store that has just begun to watch says so, as jobs may have come before.
    assert any(store.wait(0.05) is False for _ in range(100))


def test_of_several_updates_each_is_made_for_which_what_it_expects_holds_and_they_are_counted(store: Store) -> None:
    for key in ("a", "b", "c"):
        store.insert("gpus", {"_id": key, "state": "idle", "version": 1})
    store.update("gpus", "b", {}, {"state": "in use"})
    free = {"state": "idle", "version": 1}
    claims = [(key, free, {"state": "reserved", "worker_id": n}) for n, key in enumerate(("a", "b", "c", "absent"))]
    assert store.update_many("gpus", claims) == 2
    rows = {row["_id"]: (row["state"], row.get("worker_id"), row["version"]) for row in store.list("gpus")}
    assert rows == {"a": ("reserved", 0, 2), "b": ("in use", None, 2), "c": ("reserved", 2, 2)}


def test_what_no_store_takes_is_refused_among_several_updates_too(store: Store) -> None:
    store.insert("gpus", {"_id": "a", "state": "idle"})
    with pytest.raises(Rejected):
        store.update_many("gpus", [("a", {}, {"state": "in use"}), ("b", {}, {"state": math.nan})])
    assert store.list("gpus")[0]["state"] == "idle"


def test_several_rows_are_put_at_once_new_ones_and_those_that_are_there(store: Store) -> None:
    store.put("overheads", {"_id": "b", "ckpt": 1.0, "left": True})
    store.put_many("overheads", [{"_id": "a", "ckpt": 2.0}, {"_id": "b", "ckpt": 3.0}])
    assert store.list("overheads") == [{"_id": "a", "ckpt": 2.0}, {"_id": "b", "ckpt": 3.0}]
    with pytest.raises(Rejected):
        store.put_many("overheads", [{"_id": "a", "ckpt": 4.0}, {"_id": "c", "ckpt": math.nan}])
    store.put_many("overheads", [])
    assert [row["ckpt"] for row in store.list("overheads")] == [2.0, 3.0]


def test_an_event_with_a_number_that_is_none_of_ours_is_passed_over(store: Store) -> None:
    store.append_events([{"_id": 3, "type": "a"}])
    store.put("events", {"_id": 2**63 - 1, "type": "by hand"})
    assert store.last_event() == 3
    assert [event["_id"] for event in store.events_after(0)] == [3]
    store.append_events([{"_id": 4, "type": "b"}])
    assert [event["_id"] for event in store.events_after(3)] == [4]
