"""The store that the fast tests use answers as SqliteStore does, whatever it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.errors import ReshapeError, Transient
from coordinator.ports import Store
from coordinator.stores.sqlite import SqliteStore
from tests.fakes.store import MemoryStore

KEYS = st.sampled_from(["a", "b", 1, "1"])
VALUES = st.sampled_from([None, True, 1, 1.0, "x", [1, {"y": None}], float("nan"), {"a.b": 1}])
CHANGES = st.dictionaries(st.sampled_from(["state", "version", "closed"]), VALUES, max_size=2)
ASKED = st.one_of(
    st.tuples(st.just("insert"), st.just("jobs"), st.builds(lambda k, c: {"_id": k, **c}, KEYS, CHANGES)),
    st.tuples(st.just("put"), st.just("jobs"), st.builds(lambda k, c: {"_id": k, **c}, KEYS, CHANGES)),
    st.tuples(st.just("update"), st.just("jobs"), KEYS, CHANGES, CHANGES),
    st.tuples(st.just("delete"), st.just("jobs"), KEYS, CHANGES),
    st.tuples(st.just("get"), st.just("jobs"), KEYS),
    st.tuples(st.just("list"), st.just("jobs"), CHANGES),
)


def answer(store: Store, verb: str, *given: Any) -> Any:
    try:
        return getattr(store, verb)(*given)
    except ReshapeError as error:
        return type(error)


@given(st.lists(ASKED, max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_answer_alike(tmp_path: Path, questions: list[tuple[Any, ...]]) -> None:
    memory = MemoryStore().healthy()
    sqlite = SqliteStore(":memory:")
    for question in questions:
        assert answer(memory, *question) == answer(sqlite, *question), question
    assert memory.list("jobs") == sqlite.list("jobs")
    sqlite.close()


def test_a_document_is_not_shared_with_the_store() -> None:
    store, doc = MemoryStore(), {"_id": 1, "gpu_ids": [0]}
    store.insert("jobs", doc)
    doc["gpu_ids"].append(1)  # type: ignore[attr-defined]
    store.list("jobs")[0]["gpu_ids"].append(2)
    assert store.get("jobs", 1) == {"_id": 1, "gpu_ids": [0]}


def test_it_fails_before_or_after_a_write_as_it_is_told() -> None:
    store = MemoryStore()
    store.insert("jobs", {"_id": 1})
    store.hiccups.extend(["before", "after", ""])
    for expected in (None, 1):
        with pytest.raises(Transient):
            store.update("jobs", 1, {}, {"message": "x"})
        assert (store.get("jobs", 1) or {}).get("version") == expected
    assert store.update("jobs", 1, {}, {})["version"] == 2
