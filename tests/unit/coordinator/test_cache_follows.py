"""A cache that reads only what has changed knows after every change what one knows that reads all: on SQLite, and by
`tests/contract/test_followed_changes.py` on MongoDB."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Conflict, ReshapeError
from coordinator.ports import Doc, Store
from coordinator.stores import lookups
from coordinator.stores.cache import Cache
from coordinator.stores.sqlite import SqliteStore

JOBS, GPUS = [f"j{n}" for n in range(6)], [f"g{n}" for n in range(6)]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "s.db")


def known(cache: Cache, new: list[Any]) -> dict[str, Any]:
    jobs = {name: job.doc for name, job in cache.jobs().items()}
    gpus = {name: gpu.doc for name, gpu in cache.gpus().items()}
    aside = {name: job.doc for name, job in cache.set_aside().items()}
    shown = {job.key: cache.invalid_fields_of(job) for job in (*cache.jobs().values(), *cache.set_aside().values())}
    misfits = shown, cache.invalid_fields("gpus")
    assert cache.gpus_by_type() == Counter(gpu.gpu_type for gpu in cache.gpus().values())
    return {"jobs": jobs, "gpus": gpus, "aside": aside, "new": sorted(job.id for job in new), "misfits": misfits}


def a_job(rng: random.Random, name: str) -> Doc:
    closed: Doc = rng.choice(
        [{}, {"closed": None}, {"closed": False}, {"closed": False}, {"closed": False}, {"closed": True}]
    )
    uid: Doc = (
        rng.choice([{}, {"uid": "u1"}, {"uid": "u1"}, {"uid": "u2"}])
        if closed.get("closed") is False
        else {"uid": "u1"}
    )
    odd: Doc = rng.choice([{}, {}, {}, {"state": 7}, {"generation": "x"}, {"iterations": -1}])
    gpu_ids = rng.sample(GPUS, rng.randrange(3))
    return {
        "_id": name,
        "job_id": name,
        "state": "running",
        "generation": 1,
        "gpu_ids": gpu_ids,
        **closed,
        **uid,
        **odd,
    }


def a_gpu(rng: random.Random, name: str) -> Doc:
    job = rng.choice([None, *JOBS])
    odd: Doc = rng.choice([{}, {}, {}, {"node": 7}])
    return {
        "_id": name,
        "node": f"n{rng.randrange(2)}",
        "state": "in use" if job else "idle",
        "job_id": job,
        "held_by": job,
        "gpu_type": rng.choice(["V100", "K80"]),
        **odd,
    }


def change(rng: random.Random, users: Store, cache: Cache) -> None:
    """A user edits the store, or the coordinator writes through its cache."""
    table, name = rng.choice([("jobs", rng.choice(JOBS)), ("gpus", rng.choice(GPUS))])
    what = rng.randrange(6)
    if what == 0:
        users.remove(table, [name])
    elif what <= 3:
        users.put(table, a_job(rng, name) if table == "jobs" else a_gpu(rng, name))
    elif (job := cache.job(name)) is not None:
        try:
            cache.write_job(job, {"closed": True} if rng.random() < 0.3 else {"message": str(rng.random())}, "op")
        except ReshapeError:
            return
    elif (gpu := cache.gpus().get(name)) is not None:
        try:
            cache.write_gpu(gpu, {}, {"state": "reserved", "job_id": "j0"})
        except Conflict:
            return


def agrees_after_each_change(seed: int, store: Store, users: Store, rounds: int) -> None:
    """`store` is followed, `users` another connection to it. Only from time to time all is read anew to compare."""
    rng = random.Random(seed)
    cache = Cache(store, lambda lost: True)  # what is put here has no version, as if it were older, and is to be read
    cache.refresh()
    for _ in range(rounds):
        for _ in range(rng.randrange(4)):
            change(rng, users, cache)
        by_changes = known(cache, cache.refresh())
        if rng.random() < 0.5:
            cache.read_number = None
            assert by_changes == known(cache, cache.refresh())


@pytest.mark.parametrize("seed", range(40))
def test_what_is_read_by_changes_is_what_is_read_anew(file: str, seed: int) -> None:
    agrees_after_each_change(seed, SqliteStore(file), SqliteStore(file), 80)


def test_a_reading_after_which_nothing_changed_reads_no_row_again(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(file)
    for number in range(30):
        store.insert(
            "jobs", {"_id": f"j{number}", "job_id": f"j{number}", "uid": "u", "closed": False, "state": "running"}
        )
        store.insert("gpus", {"_id": f"g{number}", "node": "n", "state": "idle"})
    cache, read = Cache(store), list[str]()
    cache.refresh()
    changed = store.changed

    def noted(tables: Sequence[str], since: int | None) -> tuple[int, Mapping[tuple[str, Any], Doc | None] | None]:
        number, rows = changed(tables, since)
        read.extend(key for _, key in ({("", "all")} if rows is None else rows))
        return number, rows

    monkeypatch.setattr(store, "get", lambda table, key: read.append(key))
    monkeypatch.setattr(store, "changed", noted)
    cache.refresh()
    assert read == []
    SqliteStore(file).update("jobs", "j7", {}, {"wanted": 2})
    cache.refresh()
    job = cache.job("j7")
    assert (read, job and job.wanted) == (["j7"], 2)


def test_after_more_changes_than_are_kept_all_is_read(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "FOLLOWED_CHANGES", 5)
    store = SqliteStore(file)
    cache = Cache(store)
    cache.refresh()
    for number in range(9):
        store.insert("gpus", {"_id": f"g{number}", "node": "n", "state": "idle"})
    assert store.changed(("gpus",), 0)[1] is None
    cache.refresh()
    assert len(cache.gpus()) == 9


def test_a_failed_reading_is_made_again(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(file)
    cache = Cache(store)
    cache.refresh()
    store.insert("gpus", {"_id": "g", "node": "n", "state": "idle"})
    with monkeypatch.context() as broken:
        broken.setattr(store, "list", lambda table, where: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cache.refresh()
    cache.refresh()
    assert list(cache.gpus()) == ["g"]


def agree(cache: Cache, store: SqliteStore) -> None:
    """A turn's reading has left the cache with the GPUs of the store."""
    cache.refresh()
    assert {name: gpu.doc for name, gpu in cache.gpus().items()} == {row["_id"]: row for row in store.list("gpus")}


def test_a_store_restored_from_a_copy_is_read_anew(file: str, tmp_path: Path) -> None:
    store, copy, users = SqliteStore(file), sqlite3.connect(tmp_path / "copy.db"), sqlite3.connect(file)
    cache = Cache(store)
    store.insert("gpus", {"_id": "g1", "node": "n", "state": "idle"})
    users.backup(copy)
    for number in range(2, 5):
        store.insert("gpus", {"_id": f"g{number}", "node": "n", "state": "idle"})
    agree(cache, store)
    copy.backup(users)
    agree(cache, store)
    assert list(cache.gpus()) == ["g1"]


def test_a_store_that_another_version_has_indexed_is_read_anew(file: str) -> None:
    store, users = SqliteStore(file), sqlite3.connect(file, isolation_level=None)
    cache = Cache(store)
    store.insert("gpus", {"_id": "g1", "node": "n", "state": "idle"})
    agree(cache, store)
    for (trigger,) in users.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        users.execute(f"DROP TRIGGER {trigger}")
    users.execute(f"PRAGMA user_version = {lookups.VERSION - 1}")
    store.insert("gpus", {"_id": "g2", "node": "n", "state": "idle"})
    agree(cache, store)
    assert list(cache.gpus()) == ["g1", "g2"]


def test_a_row_whose_key_no_store_would_take_hides_no_other_one(file: str) -> None:
    store, users = SqliteStore(file), sqlite3.connect(file, isolation_level=None)
    cache = Cache(store)
    agree(cache, store)
    users.execute("""INSERT INTO documents VALUES ('jobs', 1.5, '{"_id": 1.5, "state": "submitted"}')""")
    store.insert("gpus", {"_id": "g1", "node": "n", "state": "idle"})
    assert [job.key for job in cache.refresh()] == [1.5]
    assert list(cache.gpus()) == ["g1"]
