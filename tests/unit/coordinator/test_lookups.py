"""The SQLite store finds rows by a field without reading the others, and every process that writes keeps it so."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from coordinator.stores import sqlite as module
from coordinator.stores.sqlite import SCHEMA, SqliteStore


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The documents that were decoded, one after the other."""
    rows: list[Any] = []
    decode = module._decoded
    monkeypatch.setattr(module, "_decoded", lambda *row: rows.append(row) or decode(*row))
    return rows


def filled(path: Path) -> SqliteStore:
    store = SqliteStore(str(path))
    for number in range(50):
        store.insert("jobs", {"_id": f"j{number}", "job_id": number, "closed": number >= 3, "uid": "u"})
        store.insert("decisions", {"_id": f"d{number}", "job_id": number, "jobs": [str(number), "all"]})
    store.insert("jobs", {"_id": "new"})
    return store


def test_a_listing_by_an_indexed_field_reads_only_what_it_returns(tmp_path: Path, read: list[Any]) -> None:
    store = filled(tmp_path / "s.db")
    for table, where, count in (
        ("jobs", {"closed": None}, 1), ("jobs", {"closed": False}, 3), ("jobs", {"job_id": 7}, 1),
        ("decisions", {"jobs": "7"}, 1), ("decisions", {"jobs": "all"}, 50),
        ("jobs", {"closed": False, "job_id": 2}, 1),
    ):  # fmt: skip
        read.clear()
        assert (len(store.list(table, where)), len(read)) == (count, count), where


def test_a_change_of_the_field_moves_the_row_and_a_removed_row_is_not_found(tmp_path: Path, read: list[Any]) -> None:
    store = filled(tmp_path / "s.db")
    store.update("jobs", "j0", {}, {"closed": True})
    store.put("jobs", {"_id": "j1", "closed": None})
    store.delete("jobs", "j2")
    read.clear()
    assert [row["_id"] for row in store.list("jobs", {"closed": False})] == []
    assert [row["_id"] for row in store.list("jobs", {"closed": None})] == ["j1", "new"]
    assert len(read) == 2


def test_a_file_of_an_older_version_is_indexed_when_it_is_opened_and_only_then(tmp_path: Path, read: list[Any]) -> None:
    old = sqlite3.connect(tmp_path / "old.db")
    old.execute(SCHEMA)
    rows = [(n, f'{{"_id":{n},"closed":{"null" if n else "false"}}}') for n in range(9)]
    old.executemany("INSERT INTO documents VALUES ('jobs', ?, ?)", rows)
    old.commit()
    for _ in range(2):
        store = SqliteStore(str(tmp_path / "old.db"))
        read.clear()
        assert [row["_id"] for row in store.list("jobs", {"closed": False})] == [0]
        assert len(read) == 1
        store.close()
    old.execute("INSERT OR REPLACE INTO documents VALUES ('jobs', 0, '{\"_id\":0,\"closed\":true}')")  # as it wrote
    old.commit()
    store = SqliteStore(str(tmp_path / "old.db"))
    assert store.list("jobs", {"closed": False}) == []
    assert [row["_id"] for row in store.list("jobs", {"closed": True})] == [0]


@pytest.mark.parametrize("value", ["x\0y", "", 1.0, 2**62, "1", True, "{"])
def test_odd_values_are_found(tmp_path: Path, value: Any) -> None:
    store = SqliteStore(str(tmp_path / "s.db"))
    store.insert("jobs", {"_id": 0, "job_id": value})
    store.insert("jobs", {"_id": 1, "job_id": [None, value]})
    store.insert("jobs", {"_id": 2, "job_id": {"a": value}})
    assert [row["_id"] for row in store.list("jobs", {"job_id": value})] == [0, 1]
    assert [row["_id"] for row in store.list("jobs", {"job_id": None})] == [1]


def test_a_write_and_a_removal_cost_the_same_among_few_rows_and_among_many(tmp_path: Path) -> None:
    def steps(rows: int) -> int:
        store, count = SqliteStore(str(tmp_path / f"{rows}.db")), [0]
        for number in range(rows):
            store.insert("jobs", {"_id": f"j{number:05}", "job_id": number, "closed": True})

        def step() -> int:
            count[0] += 1
            return 0

        store._connection.set_progress_handler(step, 10)  # of SQLite's machine
        for number in range(10):
            store.update("jobs", f"j{number:05}", {}, {"closed": False})
        assert store.remove("jobs", [f"j{number:05}" for number in range(20)], {"closed": True}) == 10
        return count[0]

    assert steps(2_000) <= 1.5 * steps(50)
