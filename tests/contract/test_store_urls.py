"""Which URLs open a store, and what a person is told about those that do not."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.errors import Rejected, Transient
from coordinator.stores.mongo import MongoStore
from coordinator.stores.opening import open_store
from coordinator.stores.sqlite import SqliteStore


def test_three_slashes_are_relative_and_four_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("sqlite:///relative.db").close()
    open_store(f"sqlite:///{tmp_path}/new folder/absolute.db").close()
    assert (tmp_path / "relative.db").is_file()
    assert (tmp_path / "new folder" / "absolute.db").is_file()


def test_sqlite_forces_every_write_to_the_disk_as_no_test_can_see_without_cutting_the_power(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "a.db"))
    settings = [store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")]
    store.close()
    assert settings == [2, "wal"]  # 2: FULL


def test_the_database_of_mongodb_is_reshape_unless_named() -> None:
    for url, name in (("mongodb://127.0.0.1:1", "reshape"), ("mongodb://127.0.0.1:1/other?w=1", "other")):
        store = open_store(url)
        assert isinstance(store, MongoStore)
        assert store._database.name == name
        store.close()


def test_a_write_waits_for_majority_and_journal_and_is_never_sent_twice() -> None:
    store = MongoStore("mongodb://127.0.0.1:1/reshape?w=0&retryWrites=true")
    assert store._table("jobs").write_concern.document == {"w": "majority", "j": True, "wtimeout": 10000}
    assert store._client.options.retry_writes is False
    store.close()


@pytest.mark.parametrize("url", ["", "postgres://h/d", "sqlite:", "sqlite://x", "sqlite:///", "store.db"])
def test_another_url_is_rejected_with_both_forms(url: str) -> None:
    with pytest.raises(Rejected, match=r"write sqlite:///reshape\.db or mongodb://host:27017/reshape"):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["mongodb://u:sec/ret@h:1/d", "mongodb://h:x/d", "mongodb://", "mongodb://h/d?ssl=maybe"]
)
def test_a_wrong_mongodb_url_is_rejected_without_repeating_it(url: str) -> None:
    with pytest.raises(Rejected, match="mongodb://host:27017/reshape") as caught:
        open_store(url)
    assert "sec" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_file_that_is_no_database_is_rejected_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, and long enough to be looked at " * 50)
    before = file.read_bytes()
    with pytest.raises(Rejected, match="not a sound SQLite database"):
        SqliteStore(str(file))
    assert file.read_bytes() == before


def test_a_place_where_no_file_can_be_is_rejected_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Rejected, match="name another file"):
        SqliteStore(str(tmp_path / "file" / "store.db"))
    with pytest.raises(Rejected, match="name another file"):
        SqliteStore(str(tmp_path))
    with pytest.raises(Rejected, match="name another file"):
        SqliteStore("/proc/store.db")


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    store.close()
    with pytest.raises(Transient, match="closed"):
        store.list("jobs")


def test_sqlite_refuses_keys_it_could_not_give_back_as_they_were(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    for key in (True, None, 2**64):
        with pytest.raises(Rejected):
            store.insert("jobs", {"_id": key})
    store.close()


def test_each_write_to_sqlite_is_synced(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    with store._using() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()
    plain = sqlite3.connect(tmp_path / "store.db")
    assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    plain.close()


def test_opening_sqlite_does_not_load_pymongo(tmp_path: Path) -> None:
    code = (
        "import sys; from coordinator.stores.opening import open_store;"
        f"open_store('sqlite:///{tmp_path}/s.db').close(); assert 'pymongo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
