"""The store under several processes, killed writers and killed servers: real processes, real sockets.

mongomock is left out: it finds, then updates by `_id` alone, and lives in memory, so it proves
nothing about races or kills (`reliability.md` 1).
"""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from coordinator.errors import Transient
from coordinator.ports import Store
from coordinator.stores.mongo import MongoStore
from coordinator.stores.opening import open_store
from tests.fakes.nx import start_nx, stop_nx
from tests.patience import patient

ROOT = Path(__file__).parents[2]
SOON = patient(60.0)  # a deadline against hanging, never a measurement
IMPATIENT = "serverSelectionTimeoutMS=300&connectTimeoutMS=300&socketTimeoutMS=300"


@contextmanager
def racers(verb: str, url: str, processes: int, number: int = 0) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have opened the store and wait for a line; killed at the end."""
    command = [sys.executable, "-m", "tests.contract.racers", verb, url, str(number)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    started = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    try:
        for racer in started:
            assert racer.stdout is not None
            assert racer.stdout.readline() == '"ready"\n'
        yield started
    finally:
        for racer in started:
            racer.kill()
            racer.communicate()


def race(verb: str, url: str, number: int) -> list[Any]:
    with racers(verb, url, 3, number) as started:
        for racer in started:
            say_go(racer)
        lines = [racer.communicate(timeout=SOON)[0] for racer in started]
        assert [racer.returncode for racer in started] == [0, 0, 0]
    return [json.loads(line) for line in lines]


def say_go(racer: subprocess.Popen[str]) -> None:
    assert racer.stdin is not None
    racer.stdin.write("go\n")
    racer.stdin.flush()


def test_each_version_is_won_by_exactly_one_of_three_processes(store_url: str) -> None:
    store = open_store(store_url)
    store.insert("jobs", {"_id": "contested", "version": 0, "count": 0})
    wins = race("count", store_url, 100)
    doc = store.get("jobs", "contested")
    store.close()
    assert doc is not None
    assert doc["version"] == doc["count"] == sum(wins)
    assert sum(wins) >= 100


def test_each_key_is_claimed_by_exactly_one_of_three_processes(store_url: str) -> None:
    store = open_store(store_url)
    for key in range(100):
        store.insert("gpus", {"_id": key, "state": "idle"})
    won = race("claim", store_url, 100)
    versions = [gpu["version"] for gpu in store.list("gpus")]
    store.close()
    assert sorted(key for racer in won for key in racer["update"]) == list(range(100))
    assert sorted(key for racer in won for key in racer["insert"]) == list(range(100))
    assert versions == [1] * 100


def test_three_processes_can_create_one_sqlite_store_at_once(tmp_path: Path) -> None:
    won = race("claim", f"sqlite:///{tmp_path}/new/store.db", 20)
    assert sorted(key for racer in won for key in racer["insert"]) == list(range(20))


def test_a_sqlite_store_opens_once_another_process_that_creates_it_is_done(tmp_path: Path) -> None:
    # In this state SQLite refuses the switch to its write-ahead log at once, whatever its timeout.
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    done = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    done.start()
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    store.insert("jobs", {"_id": 1})
    store.close()
    done.join()
    other.close()


def test_all_that_was_acknowledged_survives_a_killed_writer(store_url: str) -> None:
    with racers("write", store_url, 1) as (writer,):
        say_go(writer)
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(50)]
        writer.kill()
        acknowledged += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    store = open_store(store_url)
    kept = {doc["_id"] for doc in store.list("jobs")}
    store.insert("jobs", {"_id": "after"})
    store.close()
    assert set(acknowledged) <= kept


def test_all_that_was_acknowledged_survives_a_killed_server_which_is_transient_until_it_is_back(tmp_path: Path) -> None:
    process, url = start_nx(tmp_path)
    store = open_store(f"{url}/kill?{IMPATIENT}")
    try:
        for key in range(100):
            retried(lambda key=key: store.put("jobs", {"_id": key}))
        stop_nx(process)
        for call in (lambda: store.get("jobs", 1), lambda: store.update("jobs", 1, {}, {}), lambda: store.list("jobs")):
            with pytest.raises(Transient, match="does not answer"):
                call()
        process, _ = start_nx(tmp_path, urlsplit(url).port)
        assert [doc["_id"] for doc in retried(lambda: store.list("jobs"))] == list(range(100))
        retried(lambda: store.put("jobs", {"_id": 100}))
    finally:
        store.close()
        stop_nx(process)


def retried(call: Any) -> Any:
    deadline = time.monotonic() + SOON
    while True:
        try:
            return call()
        except Transient:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_server_that_takes_the_call_and_never_answers_is_transient() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = MongoStore(f"mongodb://127.0.0.1:{listener.getsockname()[1]}/silent?{IMPATIENT}")
        with pytest.raises(Transient):
            store.insert("jobs", {"_id": 1})
        assert store.wait(0.01) is False
        store.close()


def test_a_sqlite_store_that_another_process_keeps_locked_is_transient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.stores.sqlite.BUSY_SECONDS", 0.05)
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Transient, match="locked"):
        store.insert("jobs", {"_id": 1})
    with pytest.raises(Transient, match="locked"):
        store.append_events([{"_id": 1}])
    other.execute("ROLLBACK")
    other.close()
    store.insert("jobs", {"_id": 1})
    store.append_events([{"_id": 1}])
    store.close()


def settle(store: Store, adapter: str) -> None:
    """Until the store watches and has nothing to tell."""
    if adapter != "sqlite":
        assert store.wait(SOON) is True
    while store.wait(0.05):
        pass


def test_wait_notices_a_job_that_another_process_inserts(store_url: str, adapter: str) -> None:
    store = open_store(store_url)
    seen: list[bool] = []
    with racers("submit", store_url, 1) as (submitter,):
        settle(store, adapter)
        waiter = threading.Thread(target=lambda: seen.append(store.wait(SOON)), daemon=True)
        waiter.start()
        say_go(submitter)
        submitter.communicate(timeout=SOON)
        waiter.join(2 * SOON)
    store.close()
    assert seen == [True]


def test_wait_notices_a_job_that_this_process_inserts(store_url: str, adapter: str) -> None:
    store = open_store(store_url)
    settle(store, adapter)
    store.insert("jobs", {"_id": 1})
    assert store.wait(SOON) is True
    store.close()
