"""Row 21: large, slow and odd requests are bounded, and everybody else is served meanwhile."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from coordinator.http import server_limits
from coordinator.http.heartbeats import heartbeat_request
from coordinator.http.heartbeats.heartbeat_request import HEARTBEATS
from coordinator.http.server_limits import BODY_LIMIT, CONNECTIONS
from tests.api.caller import Caller
from tests.fakes.coordinator_api import TOKEN, Live
from tests.patience import eventually, patient


@contextmanager
def raw(live: Live, sent: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", live.port), timeout=patient(20)) as connection:
        connection.sendall(sent)
        yield connection


def gone(connection: socket.socket) -> bool:
    """Return whether the other end no longer knows the connection, which it does not tell by itself."""
    connection.setblocking(False)
    try:
        connection.send(b"x")
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return False


def head(method: str = "POST", path: str = "/v1/jobs", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", "Content-Type: application/json"]
    return "\r\n".join([*lines, *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()), "", ""]).encode()


def test_a_body_of_a_gigabyte_is_refused_before_it_is_sent(live: Live) -> None:
    with raw(live, head(Content_Length=str(2**30))) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_body_of_unknown_length_is_bounded_too(call: Caller, live: Live) -> None:
    chunk = b"%x\r\n" % 65_536 + b" " * 65_536 + b"\r\n"
    with raw(live, head(Transfer_Encoding="chunked") + 2 * chunk + b"0\r\n\r\n") as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_long_heartbeat_is_refused_even_of_a_job_that_is_known(live: Live) -> None:
    live.coordinator.in_memory = True
    chunk = b"%x\r\n" % (BODY_LIMIT + 1) + b" " * (BODY_LIMIT + 1) + b"\r\n0\r\n\r\n"
    for length, body in ({"Content_Length": str(BODY_LIMIT + 1)}, b""), ({"Transfer_Encoding": "chunked"}, chunk):
        sender = {"X_Reshape_Job": "a", "X_Reshape_Launch": "1", "X_Reshape_Signature": "x"}
        with raw(live, head(path=HEARTBEATS, **sender, **length) + body) as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_heartbeat_without_end_is_cut_off(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_request, "BODY_S", 0.1)
    with raw(live, head(path=HEARTBEATS, Content_Length="100") + b"{") as connection:
        assert connection.recv(4096) == b""


def test_slow_clients_keep_nobody_waiting(call: Caller, live: Live) -> None:
    slow = [socket.create_connection(("127.0.0.1", live.port), timeout=patient(20)) for _ in range(100)]
    try:
        for number, connection in enumerate(slow):
            connection.sendall(b"GET /v1/jo" if number % 2 else head(Content_Length="100") + b"{")
        assert call("GET", "/v1/jobs").status == 200
    finally:
        for connection in slow:
            connection.close()


def test_a_client_that_does_not_read_its_answers_is_cut_off(
    call: Caller, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_limits, "UNREAD_S", 0.5)
    deaf = socket.socket()
    with deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", live.port))
        deaf.sendall(b"GET /v1/openapi.yaml HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        eventually(lambda: gone(deaf), "it is cut off")
    assert call("GET", "/v1/jobs").status == 200


def test_headers_without_end_are_cut_off(call: Caller, live: Live) -> None:
    with raw(live, b"GET /v1/jobs HTTP/1.1\r\nX: " + b"x" * 100_000) as connection:
        try:
            assert not connection.recv(4096).startswith(b"HTTP/1.1 2")
        except ConnectionResetError:
            pass
    assert call("GET", "/v1/jobs").status == 200


def answered(connection: socket.socket) -> bool:
    """Ask something that needs the token over this connection; return whether it was answered."""
    connection.settimeout(patient(20))
    try:
        connection.sendall(head("GET"))
        return b"HTTP/1.1 200" in connection.recv(65_536)
    except ConnectionError:
        return False


def test_of_too_many_connections_those_of_whoever_has_most_are_closed(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_limits, "most_connections", lambda: 12)
    with ExitStack() as opened:
        few = [opened.enter_context(raw(live, b"")) for _ in range(3)]
        assert all(map(answered, few)), "who has the token"
        for _ in range(60):
            one = opened.enter_context(raw(live, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"))
            assert one.recv(65_536), "each new one is served"
        assert all(map(answered, few)), "though it asked longest ago"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET /v1/jobs HTTP/9.9\r\nHost: x\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        head(Content_Length="²"),
    ],
)
def test_what_is_no_http_hurts_nobody(call: Caller, live: Live, request_bytes: bytes) -> None:
    with raw(live, request_bytes) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(4096)
        assert not answer.startswith(b"HTTP/1.1 2")
        assert not answer.startswith(b"HTTP/1.1 5")
    assert call("GET", "/v1/jobs").status == 200


def test_a_server_may_keep_more_connections_than_a_process_may_have_files_open_at_first() -> None:
    program = """
import resource
from tornado.web import Application
from coordinator.http.app import make_server
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
make_server(Application())
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], most)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    few, most = map(int, done.stdout.split())
    assert few == (CONNECTIONS if most < 0 else min(CONNECTIONS, most)) > 256
