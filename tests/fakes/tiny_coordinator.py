"""The coordinator as a sidecar sees it: takes heartbeats and wishes on loopback, answers as told.

`answer` chooses how heartbeats are answered from now on; everything that came in is kept.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from sidecar.protocol import (
    HEADER_JOB,
    HEADER_LAUNCH,
    HEADER_SIGNATURE,
    Heartbeat,
    HeartbeatReply,
    OperatorRequest,
    sign,
    signed,
)

KEY = b"k" * 64


@dataclass
class Taken:
    """One heartbeat as it arrived."""

    beat: Heartbeat
    at: float  # CLOCK_BOOTTIME
    trusted: bool  # rightly signed and with the right headers


@dataclass
class TinyCoordinator:
    answer: str = "good"  # or unsigned, other key, other path, earlier number, unknown launch, completed, 500, junk
    delay_s: float = 0.0
    lease_s: float = 300.0
    refuse_wishes: int = 0  # status to refuse them with
    taken: list[Taken] = field(default_factory=list)
    wishes: list[OperatorRequest] = field(default_factory=list)
    at_once: int = 0  # heartbeats being answered
    most_at_once: int = 0
    port: int = 0

    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def beats(self) -> list[Heartbeat]:
        return [taken.beat for taken in self.taken]

    def heartbeat(self, headers: Any, body: bytes) -> tuple[int, bytes, str]:
        beat = msgspec.json.decode(body, type=Heartbeat)
        trusted = signed(KEY, "POST", "/v1/heartbeats", body, headers.get(HEADER_SIGNATURE, ""))
        trusted = trusted and (headers.get(HEADER_JOB), headers.get(HEADER_LAUNCH)) == (beat.job_id, str(beat.launch))
        self.taken.append(Taken(beat, time.clock_gettime(time.CLOCK_BOOTTIME), trusted))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.delay_s)
        self.at_once -= 1
        how = self.answer
        seq = beat.seq - 1 if how == "earlier number" else beat.seq
        known = how not in ("unknown launch", "completed")
        fields = HeartbeatReply(seq=seq, lease_s=self.lease_s, grace_s=0.5, known=known, completed=how == "completed")
        reply = msgspec.json.encode(fields)
        if how == "junk":
            reply = b"{"
        path = "/v1/wishes" if how == "other path" else "/v1/heartbeats"
        signature = sign(b"x" * 64 if how == "other key" else KEY, "REPLY", path, reply)
        return 500 if how == "500" else 200, reply, "" if how == "unsigned" else signature

    def wish(self, headers: Any, body: bytes) -> tuple[int, bytes, str]:
        assert signed(KEY, "POST", "/v1/wishes", body, headers.get(HEADER_SIGNATURE, ""))
        if self.refuse_wishes:
            return self.refuse_wishes, json.dumps({"error": {"sentence": "the job has ended"}}).encode(), ""
        self.wishes.append(msgspec.json.decode(body, type=OperatorRequest))
        reply = b'{"decision_id": "d-1"}'
        return 202, reply, sign(KEY, "REPLY", "/v1/wishes", reply)


@contextmanager
def serving(coordinator: TinyCoordinator) -> Iterator[TinyCoordinator]:
    """On a port of its own, the same one when it is served again."""

    connected: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps connections, as the real one does

        def setup(self) -> None:
            connected.append(self.request)
            super().setup()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            take = coordinator.wish if self.path == "/v1/wishes" else coordinator.heartbeat
            status, reply, signature = take(self.headers, body)
            self.send_response(status)
            self.send_header(HEADER_SIGNATURE, signature)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", coordinator.port), Handler)
    server.daemon_threads = True
    coordinator.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield coordinator
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for one in connected:
            with contextlib.suppress(OSError):  # it has ended
                one.shutdown(socket.SHUT_RDWR)
