"""The file of a SQLite store is deleted, replaced or damaged under an open connection, or before it is opened."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from coordinator.errors import Rejected, Transient
from coordinator.stores import salvage, sqlite
from coordinator.stores.sqlite import SqliteStore
from tests.patience import patient

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


def few(file: Path) -> SqliteStore:
    store = SqliteStore(str(file))
    for number in range(60):
        store.insert("jobs", {"_id": f"j{number:02}", "command": ["x" * 900]})
    store.compact()
    return store


def test_of_two_that_find_the_damage_together_one_mends_it_and_both_use_its_file(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite"
    few(file).close()
    scratch(file, 0.5, 4096)
    first, second = SqliteStore(str(file)), SqliteStore(str(file))
    with pytest.raises(Transient, match="was damaged"):
        first.list("jobs")
    with second._lock:  # its statement began on the damaged file, before the first one had renamed that
        second._mend()
    assert sorted(part.name for part in tmp_path.glob("*.damaged-?")) == ["store.sqlite.damaged-1"]
    kept = first.list("jobs")
    assert 20 < len(kept) < 60 and second.list("jobs") == kept
    first.insert("jobs", {"_id": "new"})
    assert second.get("jobs", "new") is not None


def test_which_file_it_is_is_that_which_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = tmp_path / "store.sqlite", tmp_path / "other.sqlite"
    few(other).close()
    connect, first = sqlite._connect, [True]

    def meets(path: str) -> sqlite3.Connection:
        opened = connect(path)
        if first and first.pop():
            salvage.set_aside(file)
            other.replace(file)
        return opened

    monkeypatch.setattr(sqlite, "_connect", meets)
    assert len(SqliteStore(str(file)).list("jobs")) == 60


def test_a_deleted_file_that_a_full_disk_keeps_from_being_written_back_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "store.sqlite"
    store = few(file)
    for part in tmp_path.glob("store.sqlite*"):
        part.unlink()

    def full(path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as disk:
        disk.setattr("coordinator.stores.salvage.sqlite3.connect", full)
        for _ in range(2):
            with pytest.raises(Transient, match=r"cannot be written back now \(database or disk is full\): free some"):
                store.list("jobs")
    assert len(store.list("jobs")) == 60
    assert len(SqliteStore(str(file)).list("jobs")) == 60


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_damaged_file_that_a_full_disk_keeps_from_being_mended_stays_in_its_place(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reshape.sqlite"
    few(file).close()
    scratch(file, share, 4096)
    damaged, rows = file.read_bytes(), salvage.rows

    def fills(path: Path) -> Iterator[tuple[str, object, str]]:
        yield from islice(rows(path), 10)
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(salvage, "rows", fills)
        with pytest.raises(Transient, match=r"a new one cannot be written now \(database or disk is full\): free some"):
            SqliteStore(str(file)).list("jobs")
        store = SqliteStore(str(file)) if share else None
        if store is not None:  # the same one finds it again and again
            for _ in range(2):
                with pytest.raises(Transient, match="free some space"):
                    store.list("jobs")
    assert file.read_bytes() == damaged and list(tmp_path.glob("*.damaged-?")) == []
    store = store or SqliteStore(str(file))
    with suppress(Transient):
        store.list("jobs")
    assert len(store.list("jobs")) > (20 if share else -1)
    assert (tmp_path / "reshape.sqlite.damaged-1").read_bytes() == damaged


def test_a_file_that_is_no_store_is_never_renamed(tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG" + b"x" * 4000)
    with pytest.raises(Rejected, match="not a sound SQLite database"):
        SqliteStore(str(file))
    assert [part.name for part in tmp_path.iterdir()] == ["picture.png"]


def test_a_folder_that_is_moved_away_is_waited_for_and_gone_on_with_once_it_is_back(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    store = filled(folder / "reshape.sqlite")
    folder.rename(elsewhere)
    (folder / "jobs").mkdir(parents=True)  # as by a training that saves there meanwhile
    for _ in range(2):
        with pytest.raises(Transient, match=rf"The folder {folder} was moved away \(to {elsewhere}\): move it back"):
            store.update("jobs", "j001", {}, {"state": "lost"})
    assert sorted(path.name for path in folder.iterdir()) == ["jobs"], "no other file takes its place"
    (folder / "jobs").rmdir()
    folder.rmdir()
    elsewhere.rename(folder)
    assert len(store.list("jobs")) == JOBS
    shutil.rmtree(folder)
    folder.mkdir()
    assert len(store.list("jobs")) == JOBS, "a folder that was deleted is not waited for"
    store.close()


def test_an_index_of_the_log_that_is_cut_short_ends_no_process(tmp_path: Path) -> None:
    script = """
import os, sys
from coordinator.stores.sqlite import SqliteStore
from tests.patience import patient
store = SqliteStore(sys.argv[1])
for number in range(200):
    store.insert("jobs", {"_id": number})
for left in (0, 5000):
    os.truncate(sys.argv[1] + "-shm", left)
    store.wait(0.2)
    os.truncate(sys.argv[1] + "-shm", left)
    store.update("jobs", 7, {}, {"left": left})
store.close()
again = SqliteStore(sys.argv[1])
print(len(again.list("jobs")), again.get("jobs", 7)["left"])
"""
    command = [sys.executable, "-c", script, str(tmp_path / "store.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(60))
    assert (done.returncode, done.stdout) == (0, "200 5000\n"), done.stderr


@pytest.mark.parametrize("parts", [["-wal"], ["-wal", "-shm"]], ids="+".join)
def test_a_log_of_writes_that_is_deleted_loses_nothing(tmp_path: Path, parts: list[str]) -> None:
    file = tmp_path / "state" / "store.sqlite"
    first = few(file)
    second = SqliteStore(str(file))
    first.insert("jobs", {"_id": "in the log"})
    for part in parts:
        file.with_name(f"{file.name}{part}").unlink()
    second.insert("jobs", {"_id": "after it"})
    first.insert("jobs", {"_id": "last"})
    for store in (first, second):
        assert {"in the log", "after it", "last"} <= {doc["_id"] for doc in store.list("jobs")}
    shutil.copytree(file.parent, tmp_path / "killed")  # as a process that is killed leaves it
    kept = {doc["_id"] for doc in SqliteStore(str(tmp_path / "killed" / file.name)).list("jobs")}
    assert len(kept) == 63 and {"in the log", "after it", "last"} <= kept


def test_a_damaged_file_that_is_moved_into_its_place_is_set_aside(tmp_path: Path) -> None:
    file = tmp_path / "reshape.sqlite"
    store = few(file)
    for content in (b"\x00\xff" * 2500, file.read_bytes()[:5000]):
        other = tmp_path / "other"
        other.write_bytes(content)
        other.replace(file)
        assert store.list("jobs") == []
        store.insert("jobs", {"_id": "new"})
        assert [doc["_id"] for doc in SqliteStore(str(file)).list("jobs")] == ["new"]
    assert len(list(tmp_path.glob("reshape.sqlite.damaged-?"))) == 2


@pytest.mark.parametrize(
    ("code", "mend"),
    [(sqlite3.SQLITE_FULL, "free some space, then"), (sqlite3.SQLITE_IOERR_WRITE, "or look at the disk, then")],
)
def test_a_disk_that_fails_is_not_called_full(code: int, mend: str) -> None:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    assert mend in str(sqlite._translation("the file", error))
