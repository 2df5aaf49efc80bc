"""Documents that a user's own program inserts with an odd `_id`: each is told once, and no other job is touched.

The real coordinator on a real store, which the user fills by `sqlite3` or pymongo.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pymongo
import pytest
from bson import ObjectId

from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.ports import Store
from coordinator.stores.opening import open_store
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

ASKED = {"state": s.SUBMITTED, "optional_num_gpus": [1], "command": ["python", "train.py"], "iterations": 10**9}
LONG = Behaviour(iterations=10**9)


class Counted:
    """A store that a `World` can use: it counts what is written."""

    def __init__(self, url: str) -> None:
        self._url, self._store, self.writes = url, open_store(url), 0
        self.between_parts: Callable[[], None] = lambda: None

    def healthy(self) -> Store:
        return open_store(self._url)

    def __getattr__(self, name: str) -> Any:
        self.writes += name in ("update", "update_many", "put", "put_many", "insert", "delete", "remove")
        return getattr(self._store, name)


def inserted(url: str, key: Any, body: Any) -> None:
    """As users do, beside the coordinator."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
            file.execute("INSERT INTO documents (name, key, body) VALUES ('jobs', ?, ?)", (key, json.dumps(body)))
        file.close()
        return
    server, _, name = url.rpartition("/")
    with pymongo.MongoClient[dict[str, Any]](server) as client:
        client[name]["jobs"].insert_one({**body, "_id": key})


@pytest.fixture
def world(store_url: str) -> World:
    """One job trains, on a real store."""
    world = World(store=Counted(store_url))  # type: ignore[arg-type]
    world.submit("steady", [1], LONG)
    world.run(lambda w: w.api.jobs.job("steady")["state"] == s.RUNNING)
    return world


def turns(world: World) -> None:
    """Some turns, after which the steady job is the same process, and one more job is let in and trains."""
    launch = world.machines.present("steady")
    for _ in range(4):
        world.tick()
    world.submit("next", [1], LONG)
    world.run(lambda w: w.api.jobs.job("next")["state"] == s.RUNNING)
    assert world.machines.present("steady") is launch
    assert world.api.jobs.job("steady")["state"] == s.RUNNING


def told(world: World, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the problems of each job that has some, once they are seen to be those in the log."""
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("document ")]
    problems = ["; ".join(view["problems"]) for view in world.api.jobs.list_jobs(False) if view["problems"]]
    events = [event["problems"] for event in world.api.history.events_after(0, 1000) if event["type"] == "refused"]
    assert len(problems) == len(events) == 1
    assert len(said) <= 1 and all(problems[0] in line for line in said)
    return problems


ODD: list[tuple[str, Any, Any, str]] = [
    ("sqlite", 1.5, {**ASKED, "_id": 1.5, "optional_num_gpus": []}, "optional_num_gpus must be"),
    ("sqlite", b"ab", dict(ASKED), "the document's own _id cannot be a job's name: b'ab'"),
    ("sqlite", "a", [ASKED], "no JSON object"),
    ("sqlite", b"a", None, "no JSON object"),
    ("sqlite", "l" * 5000, dict(ASKED), "cannot be a job's name: 'lll"),
    ("sqlite", "a", {**ASKED, "job_id": "l" * 5000}, "up to 128 letters"),
    ("sqlite", "a", {**ASKED, "depends_on": ["l" * 5000]}, "depends_on: no job can have the name 'lll"),
    ("nx", {"a": 1}, dict(ASKED), "insert it again with a text as _id"),
    ("nx", b"ab", dict(ASKED), "insert it again with a text as _id"),
    ("nx", True, dict(ASKED), "insert it again with a text as _id"),
    ("nx", "l" * 5000, dict(ASKED), "cannot be a job's name: 'lll"),
]


@pytest.mark.parametrize(("store_url", "key", "body", "why"), ODD, indirect=["store_url"])
def test_it_is_refused_once_with_what_to_do(
    world: World, store_url: str, caplog: pytest.LogCaptureFixture, key: Any, body: Any, why: str
) -> None:
    inserted(store_url, key, body)
    turns(world)
    (problem,) = told(world, caplog)
    assert why in problem and len(problem) < 400


DEEP = json.dumps(ASKED)[:-1] + ', "notes": ' + "[" * 990 + "]" * 990 + "}"


ODD_BODIES = {
    "NULL": None,
    "nested": DEEP,
    "number": "3",
    "too large": '{"a": 1e999}',
    "surrogate": '{"a": "\\ud800"}',
}


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_body_that_is_no_object_that_can_be_read_is_refused_and_kept_as_it_is(
    world: World, store_url: str, caplog: pytest.LogCaptureFixture, body: str | None
) -> None:
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as file, file:
        for table in ("jobs", "decisions", "gpus", "nodes", "events", "observations"):
            file.execute("INSERT INTO documents (name, key, body) VALUES (?, 'odd', ?)", (table, body))
    turns(world)
    (problem,) = told(world, caplog)
    assert "no JSON object that can be read" in problem
    with pytest.raises(Rejected, match="no JSON object that can be read: correct or delete it"):
        world.store.update("jobs", "odd", {}, {"cancel": True})
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as file:
        assert file.execute("SELECT body FROM documents WHERE name = 'jobs' AND key = 'odd'").fetchone() == (body,)
    world.boot()
    world.run(lambda w: w.api.jobs.job("steady")["state"] == s.RUNNING)
    world.store.delete("jobs", "odd")


@pytest.mark.parametrize("said", [{}, {"_id": "another"}, {"_id": ["a"]}, {"_id": True}], ids=str)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_row_of_sqlite_is_known_by_its_key_whatever_its_body_says(world: World, store_url: str, said: Any) -> None:
    inserted(store_url, "odd", {**ASKED, **said})
    world.run(
        lambda w: [view["state"] for view in w.api.jobs.list_jobs(False) if view["job_id"] == "odd"] == [s.RUNNING]
    )
    turns(world)


@pytest.mark.parametrize("key", [1.5, b"ab"], ids=str)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_job_trains_under_any_key_that_sqlite_has(world: World, store_url: str, key: Any) -> None:
    inserted(store_url, key, {**ASKED, "job_id": "odd"})
    world.run(lambda w: w.api.jobs.job("odd")["state"] == s.RUNNING)
    world.boot()
    turns(world)
    assert world.api.jobs.job("odd")["state"] == s.RUNNING


@pytest.mark.parametrize("key", [ObjectId("6b08ba77c6db290b5abceb89"), 7, 1.5], ids=str)
@pytest.mark.parametrize("store_url", ["nx"], indirect=True)
def test_a_job_trains_under_any_key_that_mongodb_finds(world: World, store_url: str, key: Any) -> None:
    inserted(store_url, key, {**ASKED, "job_id": "odd"})
    world.run(lambda w: w.api.jobs.job("odd")["state"] == s.RUNNING)
    turns(world)


@pytest.mark.parametrize("store_url", ["nx"], indirect=True)
def test_a_copy_of_an_accepted_row_under_a_key_that_no_write_finds_stops_nothing(
    world: World, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    copied = {**(world.users.get("jobs", "steady") or {}), "job_id": "other", "uid": "another", "state": s.SUBMITTED}
    inserted(store_url, {"a": 1}, {**copied, "gpu_ids": [], "num_gpus": 0})
    turns(world)
    assert [record.getMessage() for record in caplog.records if "document {'a': 1}" in record.getMessage()] != []
