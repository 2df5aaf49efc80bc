"""Signed messages: heartbeats and forwarded operator requests of sidecars, inventories of node agents.

A sender proves itself by a signature (`sidecar/protocol.py`) with its launch key or the agents' key, not by the token.
Replies are signed, too, so that only the coordinator can renew a lease.
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import cast

from tornado.http1connection import HTTP1Connection
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerRequest,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.web import Application

from coordinator.errors import Unauthorized
from coordinator.http.base import ALWAYS, BODY_LIMIT, BODY_S, Handler, log_access
from coordinator.http.coordinator_api import CoordinatorApi
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE

HEARTBEATS = "/v1/heartbeats"
Sender = tuple[str, int, str]  # job id, launch, signature


class SignedHandler(Handler):
    """A signed message and its signed reply."""

    public = True
    threads = "quick_threads"  # a slow store must not cost a sidecar its lease, nor make a node look silent

    def reply(self, signed: tuple[bytes, str], status: int = 200) -> None:
        """Send a body and its signature."""
        body, signature = signed
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.set_header(HEADER_SIGNATURE, signature)
        self.write(body)

    def sender(self) -> Sender:
        """Who sent this, from a sidecar's headers; `Unauthorized` if one of them is missing."""
        return _sender(self.request.headers)


class HeartbeatHandler(SignedHandler):
    """A heartbeat of a job that is not in memory, and the refusal of any."""

    def initialize(self, refused: Exception | None = None) -> None:
        """`refused`: why `KnownHeartbeat` got no answer."""
        self._refused = refused

    async def post(self) -> None:
        if self._refused is not None:
            raise self._refused
        job_id, launch, signature = self.sender()
        self.reply(await self.call(self.coordinator.heartbeat, job_id, launch, self.body, signature))


class KnownHeartbeat(HTTPMessageDelegate):
    """A heartbeat of a job in memory, answered on the server's own thread without a handler: each costs as much again.

    Whatever is not answered so goes through `HeartbeatHandler`, as it would have without this class.
    """

    def __init__(self, app: Application, request: HTTPServerRequest) -> None:
        self._app, self._request, self._body = app, request, b""
        self._connection = cast(HTTP1Connection, request.connection)

    @classmethod
    def fits(cls, request: HTTPServerRequest) -> bool:
        """True if this class may take the request: the length of its body is known, and allowed."""
        length = request.headers.get("Content-Length", "")
        is_heartbeat = request.path == HEARTBEATS and request.method == "POST"
        return is_heartbeat and length.isascii() and length.isdigit() and int(length[:20]) <= BODY_LIMIT

    def headers_received(self, start_line: object, headers: HTTPHeaders) -> None:
        """Limit the time of the body by a timer: the server's own way has a task and a future more for each request."""
        self._connection.set_body_timeout(None)  # type: ignore[arg-type]  # as where the server has no limit
        self._late = asyncio.get_running_loop().call_later(BODY_S, self._connection.close)

    def data_received(self, chunk: bytes) -> None:
        self._body += chunk

    def on_connection_close(self) -> None:
        self._late.cancel()

    def finish(self) -> None:
        self._late.cancel()
        coordinator: CoordinatorApi = self._app.settings["coordinator"]
        try:
            job_id, launch, signature = _sender(self._request.headers)
            known = coordinator.knows(job_id)
            signed = coordinator.heartbeat(job_id, launch, self._body, signature) if known else None
        except Exception as error:  # a mistake of ours, too, which is logged and explained there
            return self._pass_on(error)
        return self._pass_on(None) if signed is None else self._reply(*signed)

    def _reply(self, body: bytes, signature: str) -> None:
        headers = HTTPHeaders(ALWAYS)
        headers["Date"] = formatdate(usegmt=True)
        headers["Content-Type"] = "application/json"
        headers[HEADER_SIGNATURE] = signature
        headers["Content-Length"] = str(len(body))
        self._connection.write_headers(ResponseStartLine("", 200, "OK"), headers, body)
        self._connection.finish()
        log_access(self._request, 200)

    def _pass_on(self, refused: Exception | None) -> None:
        request = self._request
        handler = self._app.get_handler_delegate(request, HeartbeatHandler, {"refused": refused})
        handler.headers_received(RequestStartLine(request.method, request.uri, request.version), request.headers)
        handler.data_received(self._body)
        handler.finish()


class ForwardedRequestHandler(SignedHandler):
    """A request that an operator made of a sidecar, which forwards it."""

    async def post(self) -> None:
        job_id, launch, signature = self.sender()
        self.reply(await self.call(self.coordinator.take_request, job_id, launch, self.body, signature), 202)


class NodeHandler(SignedHandler):
    """A node agent's report."""

    async def post(self, name: str) -> None:
        signature = self.request.headers.get(HEADER_SIGNATURE, "")
        if not signature:
            raise Unauthorized("This needs the signature of a node agent.")
        self.reply(await self.call(self.coordinator.node_reported, name, self.request.path, self.body, signature))


def _sender(headers: HTTPHeaders) -> Sender:
    job_id, launch, signature = (headers.get(name, "") for name in (HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE))
    if not job_id or not signature or not (launch.isascii() and launch.isdigit() and len(launch) < 10):
        raise Unauthorized("This needs the signature of a running launch.")
    return job_id, int(launch), signature
