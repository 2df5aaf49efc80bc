"""A want of descriptors, as by connections that say nothing, costs connections: the coordinator works on in silence."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from reshape.client import Client, CoordinatorUnreachable
from tests.fakes.terminal import environment
from tests.patience import eventually, patient

HARD, IDLE = 256, 372


def closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def answers(client: Client) -> bool:
    try:
        return bool(client.health().get("ok"))
    except CoordinatorUnreachable:
        return False


def test_more_idle_connections_than_descriptors_are_closed_and_nothing_else_is_lost(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "reshape", "--state", str(state)]
    with (tmp_path / "log").open("wb") as log:
        up = subprocess.Popen(
            [*command, "up", "--gpus", "1xV100"], env=environment(state), stdout=log, stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD)),
        )  # fmt: skip
        idle: list[socket.socket] = []
        try:
            eventually((state / "up.json").exists, "it is up")
            client, at = Client.find(state), urlsplit(json.loads((state / "up.json").read_text())["url"])
            eventually(lambda: answers(client), "it answers")
            for _ in range(IDLE):
                one = socket.create_connection((at.hostname, at.port), timeout=patient(10))
                one.setblocking(False)
                idle.append(one)
            eventually(lambda: sum(map(closed, idle)) >= IDLE - HARD // 2, "those beyond its limit are closed")
            assert not all(map(closed, idle))
            assert len(list(Path(f"/proc/{up.pid}/fd").iterdir())) < 0.8 * HARD, "the rest of it has enough"
            assert answers(client), "one that asks is served beside those that say nothing"
            client.submit({"job_id": "one", "command": ["true"], "optional_num_gpus": [1]})
            eventually(lambda: client.job("one")["state"] == "completed", "it works")
        finally:
            for one in idle:
                one.close()
            up.terminate()
            assert up.wait(patient(60)) == 0
    said = (tmp_path / "log").read_text()
    assert "Too many open files" not in said and len(said) < 10_000, said[:2000]


def test_a_listener_without_descriptors_turns_callers_away_and_serves_the_next_once_there_are_some() -> None:
    script = """
import os, resource, socket
from coordinator.http.heartbeats.server_limits import Listener
with socket.create_server(("127.0.0.1", 0)) as plain:
    listener = Listener(fileno=plain.detach())
listener.setblocking(False)
first = socket.create_connection(listener.getsockname())
listener.accept()[0].close()
callers = [socket.create_connection(listener.getsockname()) for _ in range(3)]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for caller in callers:
    try:
        listener.accept()
        raise SystemExit("accepted without a descriptor")
    except BlockingIOError:
        assert caller.recv(1) == b"", "he was turned away"
os.close(held.pop())
os.close(held.pop())
another = socket.create_connection(listener.getsockname())
listener.accept()[0].close()
print("served")
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.stdout == "served\n", done.stderr
