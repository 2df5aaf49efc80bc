"""Two `reshape coordinator` on one MongoDB, as a cluster runs them, and a node agent that tells them of GPUs.

Real processes on a server that speaks MongoDB's wire. No launcher runs: jobs get as far as table `launches`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymongo
import pytest
from pymongo.database import Database

from coordinator.recovery.lost_trainings import ROW
from reshape.client import Client, CoordinatorUnreachable
from tests.e2e.up import ROOT, SHORT, digits, wait_for
from tests.fakes.nx import _free_port, start_nx, stop_nx
from tests.patience import patient

TERM_S = 2.0
TOKEN = "0123456789abcdef-token"


class Ground:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.keys, self.emulated = folder / "keys", folder / "emulated"
        for made in (self.keys, self.emulated):
            made.mkdir()
        for name, text in (("master.key", "m" * 32), ("agent.key", "a" * 32), ("api.token", TOKEN)):
            (self.keys / name).write_text(text + "\n")
        (self.emulated / "gpus").write_text("# emulated\nnode-a=2xV100\nnode-b = 2xV100\n")
        self.nx_port = _free_port()
        self.server: subprocess.Popen[bytes] | None = None

    def store_up(self) -> None:
        self.server, _ = start_nx(self.folder / "nx", self.nx_port)
        self.stack.callback(stop_nx, self.server)

    @property
    def database(self) -> Database[dict[str, Any]]:
        client = self.stack.enter_context(pymongo.MongoClient[dict[str, Any]](f"mongodb://127.0.0.1:{self.nx_port}"))
        return client["reshape"]

    def reshape(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        settings = {**os.environ, **SHORT, "RESHAPE_TERM_S": str(TERM_S), "RESHAPE_KEYS": str(self.keys), **env}
        settings["RESHAPE_STORE"] = f"mongodb://127.0.0.1:{self.nx_port}/reshape"
        out = self.stack.enter_context((self.folder / f"{'-'.join(words)}.log").open("ab"))
        command = [sys.executable, "-m", "reshape", *words]
        process = subprocess.Popen(command, cwd=ROOT, env=settings, stdout=out, stderr=out)
        self.stack.callback(_end, process)
        return process

    def coordinator(self) -> tuple[subprocess.Popen[bytes], Client]:
        port = _free_port()
        process = self.reshape("coordinator", "--port", str(port), "--host", "127.0.0.1")
        client = Client(f"http://127.0.0.1:{port}", TOKEN)
        wait_for(lambda: probe(client, "/livez"), what="the coordinator is alive")
        return process, client

    def agent(self, node: str, at: Client) -> subprocess.Popen[bytes]:
        return self.reshape(
            "agent", "--node", node, RESHAPE_COORDINATOR=at.url, RESHAPE_EMULATED=str(self.emulated)
        )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(patient(30))


def probe(client: Client, path: str) -> bool:
    import http.client

    at = urlsplit(client.url)
    try:
        connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=patient(5))
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False


def ready(client: Client) -> bool:
    return probe(client, "/readyz")


@contextmanager
def grounds(folder: Path) -> Iterator[Ground]:
    with ExitStack() as stack:
        yield Ground(folder, stack)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with grounds(tmp_path) as ground:
        yield ground


def test_one_acts_the_other_is_alive_but_not_ready_and_takes_over_at_once_when_told_so(ground: Ground) -> None:
    ground.store_up()
    first, one = ground.coordinator()
    wait_for(lambda: ready(one), what="the first acts")
    _, two = ground.coordinator()
    assert ready(one) and not ready(two) and probe(two, "/livez")
    assert not two.health()["ok"]
    first.send_signal(signal.SIGTERM)
    assert first.wait(patient(20)) == 0
    wait_for(lambda: ready(two), what="the second acts")
    assert two.health()["ok"]


def test_one_that_was_killed_is_succeeded_once_its_term_has_run_out(ground: Ground) -> None:
    ground.store_up()
    first, one = ground.coordinator()
    wait_for(lambda: ready(one), what="the first acts")
    term = ground.database["terms"]
    term.update_one({}, {"$set": {"machine": "another"}})  # where nobody can look whether it lives
    _, two = ground.coordinator()
    first.kill()
    wait_for(lambda: ready(two), what="the second acts")


def test_the_process_that_takes_heartbeats_ends_with_its_coordinator_however_that_ends(ground: Ground) -> None:
    ground.store_up()
    for number in (signal.SIGTERM, signal.SIGKILL):
        process, client = ground.coordinator()
        wait_for(lambda client=client: ready(client), what="it acts")
        (beside,) = children(process.pid)
        process.send_signal(number)
        process.wait(patient(20))
        wait_for(lambda beside=beside: not Path(f"/proc/{beside}/stat").exists(), what="nothing of it is left")


def children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def test_a_coordinator_waits_for_its_store_alive_and_not_ready(ground: Ground) -> None:
    process, client = ground.coordinator()
    assert not ready(client) and probe(client, "/livez")
    ground.store_up()
    wait_for(lambda: ready(client), what="it acts once the store is there")
    assert ground.server is not None
    stop_nx(ground.server)
    wait_for(lambda: not ready(client), what="it no longer acts")
    ground.store_up()
    wait_for(lambda: ready(client), what="it acts again")
    assert process.poll() is None


def test_nodes_tell_of_their_gpus_and_a_job_is_asked_for_in_the_table_of_launches(ground: Ground) -> None:
    ground.store_up()
    _, client = ground.coordinator()
    wait_for(lambda: ready(client), what="it acts")
    ground.agent("node-a", client)
    gone = ground.agent("node-b", client)
    gpus = wait_for(lambda: found if len(found := client.gpus()) == 4 else None, what="four GPUs")
    assert {g["gpu_id"] for g in gpus} == {f"EMULATED-node-{n}-V100-{i}" for n in "ab" for i in (0, 1)}
    gone.kill()
    away = wait_for(lambda: [n["node"] for n in client.nodes() if not n["heard"]], what="node-b is missed")
    assert away == ["node-b"]
    ground.database["terms"].insert_one({"_id": ROW, "version": 1, "jobs": []})  # a launcher has looked what runs
    for name in ("one", "two"):
        client.submit(digits(name, 1000, [2], image="user/image:1", namespace="team-a", queue="training"))
    launches = ground.database["launches"]
    asked = wait_for(lambda: launches.find_one({"wanted": "launch"}), what="a launch is asked for")
    assert (asked["job_id"], asked["doc"]["node"], asked["doc"]["gpu_ids"]) == (
        "one",
        "node-a",
        ["EMULATED-node-a-V100-0", "EMULATED-node-a-V100-1"],
    )
    held = wait_for(lambda: client.decisions("two"), what="a decision about the other one")
    assert [d["kind"] for d in held] == ["hold"]  # not on a node that is not heard
    ground.agent("node-b", client)
    wait_for(lambda: launches.find_one({"job_id": "two"}), what="the other starts once the node is heard again")


def test_sqlite_is_refused_on_a_cluster_and_a_missing_key_is_named(ground: Ground) -> None:
    run = [sys.executable, "-m", "reshape", "coordinator", "--keys", str(ground.folder), "--store"]
    env = {**os.environ, **SHORT}
    sqlite = subprocess.run([*run, "sqlite:///x.db"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert sqlite.returncode == 1
    assert "On a cluster the store must be MongoDB" in sqlite.stderr
    keys = subprocess.run([*run, "mongodb://127.0.0.1:1/x"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert keys.returncode == 1
    assert "master.key cannot be read" in keys.stderr


def test_the_client_says_what_to_do_without_a_token(ground: Ground) -> None:
    run = [sys.executable, "-m", "reshape", "--url", "http://127.0.0.1:9", "jobs"]
    env = {**os.environ, **SHORT, "RESHAPE_TOKEN": ""}
    done = subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "set RESHAPE_TOKEN" in done.stderr
    with pytest.raises(CoordinatorUnreachable):
        Client("http://127.0.0.1:9", "x").jobs()
