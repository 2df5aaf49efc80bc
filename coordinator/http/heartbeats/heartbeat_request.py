"""One heartbeat as an HTTP request, and its answer, without a handler of Tornado's: each costs as much again."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import NamedTuple

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine

from coordinator.api.signed_messages import SignedMessages
from coordinator.errors import Unauthorized
from coordinator.http.base import ALWAYS
from coordinator.http.server_limits import BODY_LIMIT, BODY_S
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE

HEARTBEATS = "/v1/heartbeats"


class Sender(NamedTuple):
    """By what a sidecar proves itself, from the headers of its request."""

    job_id: str
    launch: int
    signature: str


def sender(headers: HTTPHeaders) -> Sender:
    """Raises `Unauthorized` if one of them is missing."""
    job_id, launch, signature = (headers.get(name, "") for name in (HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE))
    if not job_id or not signature or not (launch.isascii() and launch.isdigit() and len(launch) < 10):
        raise Unauthorized("This needs the signature of a running launch.")
    return Sender(job_id, int(launch), signature)


def is_heartbeat(method: str, path: str, headers: HTTPHeaders) -> bool:
    """True for a heartbeat whose length is known, and allowed."""
    length = headers.get("Content-Length", "")
    short = length.isascii() and length.isdigit() and int(length[:20]) <= BODY_LIMIT
    return path == HEARTBEATS and method == "POST" and short


def answered(messages: SignedMessages, of: Sender, body: bytes) -> tuple[bytes, str] | None:
    """Body and signature of the answer to a heartbeat; None if its job is not in memory. Raises `ReshapeError`."""
    if not messages.knows(of.job_id):
        return None
    return messages.heartbeat(of.job_id, of.launch, body, of.signature)


class HeartbeatRequest(HTTPMessageDelegate):
    """Reads a request; a subclass answers it in `finish`."""

    def __init__(self, connection: HTTP1Connection) -> None:
        self.connection, self.body = connection, b""
        self._late: asyncio.TimerHandle | None = None

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        """Limit the time of the body by a timer: the server's own way has a task and a future more for each request."""
        self.connection.set_body_timeout(None)  # type: ignore[arg-type]  # as where the server has no limit
        self._late = asyncio.get_running_loop().call_later(BODY_S, self.connection.close)

    def data_received(self, chunk: bytes) -> None:
        self.body += chunk

    def on_connection_close(self) -> None:
        self.body_came()

    def body_came(self) -> None:
        """End the timer."""
        if self._late is not None:
            self._late.cancel()

    def reply(self, body: bytes, signature: str) -> None:
        """Send the answer of the coordinator."""
        headers = HTTPHeaders(ALWAYS)
        headers["Date"] = formatdate(usegmt=True)
        headers["Content-Type"] = "application/json"
        headers[HEADER_SIGNATURE] = signature
        headers["Content-Length"] = str(len(body))
        self.connection.write_headers(ResponseStartLine("", 200, "OK"), headers, body)
        self.connection.finish()
