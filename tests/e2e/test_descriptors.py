"""A want of descriptors, as by connections that say nothing, costs connections: the coordinator works on in silence."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from reshape.client import Client, CoordinatorUnreachable
from tests.fakes.terminal import environment
from tests.patience import eventually, patient

HARD, IDLE = 256, 372
Address = tuple[str, int]


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


@contextlib.contextmanager
def coordinator_with_few_descriptors(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Client, Address]]:
    """Start a `reshape up`; its process, a client with its token, and where it listens."""
    state = folder / "state"
    command = [sys.executable, "-m", "reshape", "--state", str(state)]
    with (folder / "log").open("wb") as log:
        up = subprocess.Popen(
            [*command, "up", "--gpus", "1xV100"], env=environment(state), stdout=log, stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD)),
        )  # fmt: skip
        try:
            eventually((state / "up.json").exists, "it is up")
            client, at = Client.find(state), urlsplit(json.loads((state / "up.json").read_text())["url"])
            eventually(lambda: answers(client), "it answers")
            yield up, client, (str(at.hostname), int(at.port or 0))
        finally:
            up.terminate()
            assert up.wait(patient(60)) == 0
    said = (folder / "log").read_text()
    assert "Too many open files" not in said and len(said) < 10_000, said[:2000]


def has_run_a_job(client: Client) -> None:
    client.submit({"job_id": "one", "command": ["true"], "optional_num_gpus": [1]})
    eventually(lambda: client.job("one")["state"] == "completed", "it works")


def test_more_idle_connections_than_descriptors_are_closed_and_nothing_else_is_lost(tmp_path: Path) -> None:
    with coordinator_with_few_descriptors(tmp_path) as (up, client, address), contextlib.ExitStack() as opened:
        idle: list[socket.socket] = []
        for _ in range(IDLE):
            one = opened.enter_context(socket.create_connection(address, timeout=patient(10)))
            one.setblocking(False)
            idle.append(one)
        eventually(lambda: sum(map(closed, idle)) >= IDLE - HARD // 2, "those beyond its limit are closed")
        assert not all(map(closed, idle))
        assert len(list(Path(f"/proc/{up.pid}/fd").iterdir())) < 0.8 * HARD, "the rest of it has enough"
        assert answers(client), "one that asks is served beside those that say nothing"
        has_run_a_job(client)


def asked(address: Address, opened: contextlib.ExitStack) -> bool:
    """Open a connection, ask something that anybody may ask, and keep it open; False if it is closed at once."""
    one = opened.enter_context(socket.create_connection(address, timeout=patient(10)))
    try:
        one.sendall(b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n")
        return one.recv(1) != b""
    except ConnectionError:
        return False


def test_who_asks_over_more_connections_than_there_are_descriptors_locks_nobody_out(tmp_path: Path) -> None:
    with coordinator_with_few_descriptors(tmp_path) as (up, client, address), contextlib.ExitStack() as opened:
        for _ in range(IDLE):
            assert asked(address, opened), "nor does this one lock itself out"
        assert len(list(Path(f"/proc/{up.pid}/fd").iterdir())) < 0.8 * HARD, "the rest of it has enough"
        assert answers(client)
        has_run_a_job(client)


def test_a_listener_without_descriptors_turns_callers_away_and_serves_the_next_once_there_are_some() -> None:
    script = """
import os, resource, socket
from coordinator.http.server_limits import Listener
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
