"""The file of a SQLite store is deleted, replaced or damaged under an open connection, or before it is opened."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from coordinator.errors import Rejected, Transient
from coordinator.stores.sqlite import SqliteStore

JOBS = 400


def filled(file: Path) -> SqliteStore:
    """A store of several hundred pages, of which those in the middle hold jobs."""
    store = SqliteStore(str(file))
    for number in range(JOBS):
        store.insert("jobs", {"_id": f"j{number:03}", "closed": number % 2 == 0, "command": ["x" * 900], "version": 1})
    for table in ("gpus", "terms", "observations"):
        store.insert(table, {"_id": f"one of {table}", "version": 7})
    return store


def scratch(file: Path, share: float, length: int = 6000) -> None:
    """Overwrite a part of the file, as a bad sector or a careless program does."""
    with file.open("r+b") as opened:
        opened.seek(int(file.stat().st_size * share))
        opened.write(b"\x00\xff" * (length // 2))


def test_a_deleted_file_is_written_back_with_all_that_was_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "store.sqlite"
    store = filled(file)
    for part in tmp_path.glob("store.sqlite*"):
        part.unlink()
    store.update("jobs", "j001", {"version": 1}, {"state": "running"})
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"The file {file} was deleted; it is written back as it was."
    ]
    store.close()
    again = SqliteStore(str(file))
    assert len(again.list("jobs")) == JOBS and len(again.list("jobs", {"closed": True})) == JOBS // 2
    assert again.get("jobs", "j001") == {**(again.get("jobs", "j002") or {}), "_id": "j001", "closed": False,
                                         "version": 2, "state": "running"}  # fmt: skip
    assert sorted(part.name for part in tmp_path.iterdir() if "restored" in part.name) == []


def test_another_file_in_its_place_is_read_from_then_on(tmp_path: Path) -> None:
    file, old = tmp_path / "store.sqlite", tmp_path / "old.sqlite"
    store = filled(file)
    store.close()
    shutil.copy(file, old)
    store = SqliteStore(str(file))
    number, _ = store.changed(("jobs",), None)
    store.insert("jobs", {"_id": "new", "version": 1})
    old.replace(file)
    assert store.get("jobs", "new") is None and len(store.list("jobs")) == JOBS
    assert store.changed(("jobs",), number + 1)[1] is None, "all is to be read anew"
    store.insert("jobs", {"_id": "newer"})
    store.close()
    assert SqliteStore(str(file)).get("jobs", "newer") is not None


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_damaged_file_is_set_aside_and_what_can_be_read_is_taken_over(
    tmp_path: Path, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "reshape.sqlite"
    filled(file).close()
    scratch(file, share)
    damaged, store = file.read_bytes(), SqliteStore(str(file))
    try:
        store.list("jobs")
    except Transient as said:
        assert "was damaged" in str(said)
    jobs = store.list("jobs")
    assert len(jobs) > (JOBS * 0.8 if share else -1) and all(job["command"] == ["x" * 900] for job in jobs)
    aside = tmp_path / "reshape.sqlite.damaged-1"
    if len(jobs) < JOBS:
        assert aside.read_bytes() == damaged, "it stays as it was"
        assert store.list("gpus") == [] and store.list("terms") == []
        assert any(str(aside) in record.message for record in caplog.records)
    store.insert("jobs", {"_id": "new"})
    store.close()
    assert SqliteStore(str(file)).get("jobs", "new") is not None


def test_a_file_that_is_damaged_while_it_is_open_is_set_aside_at_once(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    store = filled(file)
    store.compact()
    scratch(file, 0.5)
    other = SqliteStore(str(file))  # reads the disk, where the first one may have pages in memory
    with pytest.raises(Transient, match="was damaged"):
        for _ in range(2):
            other.list("jobs")
            other.compact()
    kept = other.list("jobs")
    assert JOBS * 0.8 < len(kept) < JOBS
    assert store.list("jobs") == kept, "whoever else has it open goes on with the new one"


def test_a_file_that_is_no_store_is_never_renamed(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG" + b"x" * 4000)
    with pytest.raises(Rejected, match="not a sound SQLite database"):
        SqliteStore(str(file))
    assert [part.name for part in tmp_path.iterdir()] == ["picture.png"]
