"""The stores that the contract is tried on: SQLite, mongomock, nx-27017, and MONGODB_TEST_URI where it is set.

`store_url` names a fresh store that other processes can open too; `store` is an open one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import mongomock
import pymongo
import pytest

from coordinator.ports import Store
from coordinator.stores.mongo import MongoStore
from coordinator.stores.opening import open_store
from tests.fakes.nx import start_nx, stop_nx

SHARED = ["sqlite", "nx", *(["mongodb"] if "MONGODB_TEST_URI" in os.environ else [])]


@pytest.fixture(scope="session")
def nx_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL, without a database, of a server that all tests share; each uses a database of its own."""
    process, url = start_nx(tmp_path_factory.mktemp("nx"))
    yield url
    stop_nx(process)


@pytest.fixture
def nx_url(nx_server: str) -> str:
    return f"{nx_server}/test_{uuid.uuid4().hex}"


@pytest.fixture
def mongodb_url() -> Iterator[str]:
    server = os.environ["MONGODB_TEST_URI"]
    name = f"test_{uuid.uuid4().hex}"
    parts = pymongo.uri_parser.parse_uri(server)
    base, _, options = server.partition("?")
    base = base.removesuffix(f"/{parts['database']}") if parts["database"] else base.rstrip("/")
    yield f"{base}/{name}" + (f"?{options}" if options else "")
    with pymongo.MongoClient(server) as client:
        client.drop_database(name)


@pytest.fixture(params=SHARED)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=[*SHARED, "mongomock"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store
    if request.param == "mongomock":
        opened = MongoStore("mongodb://mongomock.invalid/reshape", mongomock.MongoClient())
    elif request.param == "sqlite":
        opened = open_store(f"sqlite:///{tmp_path}/store.db")
    else:
        opened = open_store(request.getfixturevalue(f"{request.param}_url"))
    yield opened
    opened.close()


@pytest.fixture
def adapter(request: pytest.FixtureRequest) -> str:
    """Which store this test runs on."""
    name: str = request.node.callspec.params.get("store") or request.node.callspec.params["store_url"]
    return name
