"""Signed messages: heartbeats and forwarded operator requests of sidecars, inventories of node agents.

A sender proves itself by a signature (`sidecar/protocol.py`) with its launch key or the agents' key, not by the token.
Replies are signed, too, so that only the coordinator can renew a lease.
"""

from __future__ import annotations

from typing import cast

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPServerRequest, RequestStartLine
from tornado.web import Application

from coordinator.errors import Unauthorized
from coordinator.http.base import Handler, log_access, note_who_asks
from coordinator.http.heartbeats.heartbeat_request import HeartbeatRequest, Sender, answered, sender
from sidecar.protocol import HEADER_SIGNATURE


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
        return sender(self.request.headers)


class HeartbeatHandler(SignedHandler):
    """A heartbeat of a job that is not in memory, and the refusal of any."""

    def initialize(self, refused: Exception | None = None) -> None:
        """`refused`: why `KnownHeartbeat` got no answer."""
        self._refused = refused

    async def post(self) -> None:
        if self._refused is not None:
            raise self._refused
        job_id, launch, signature = self.sender()
        self.reply(await self.call(self.all_services.messages.heartbeat, job_id, launch, self.body, signature))


class KnownHeartbeat(HeartbeatRequest):
    """A heartbeat of a job in memory, answered on the server's own thread.

    Whatever is not answered so goes through `HeartbeatHandler`, as it would have without this class.
    """

    def __init__(self, app: Application, request: HTTPServerRequest) -> None:
        super().__init__(cast(HTTP1Connection, request.connection))
        self._app, self._request = app, request

    def finish(self) -> None:
        self.body_came()
        try:
            signed = answered(self._app.settings["services"].messages, sender(self._request.headers), self.body)
        except Exception as error:  # a mistake of ours, too, which is logged and explained there
            self._pass_on(error)
            return
        if signed is None:
            self._pass_on(None)
            return
        self.reply(*signed)
        note_who_asks(self._app.settings, self.connection, f"job {sender(self._request.headers).job_id}")
        log_access(self._request, 200)
        if (hand_over := self._app.settings.get("hand_over")) is not None:
            hand_over(self.connection)

    def _pass_on(self, refused: Exception | None) -> None:
        request = self._request
        handler = self._app.get_handler_delegate(request, HeartbeatHandler, {"refused": refused})
        handler.headers_received(RequestStartLine(request.method, request.uri, request.version), request.headers)
        handler.data_received(self.body)
        handler.finish()


class ForwardedRequestHandler(SignedHandler):
    """A request that an operator made of a sidecar, which forwards it."""

    async def post(self) -> None:
        job_id, launch, signature = self.sender()
        self.reply(await self.call(self.all_services.messages.take_request, job_id, launch, self.body, signature), 202)


class NodeHandler(SignedHandler):
    """A node agent's report."""

    async def post(self, name: str) -> None:
        signature = self.request.headers.get(HEADER_SIGNATURE, "")
        if not signature:
            raise Unauthorized("This needs the signature of a node agent.")
        self.reply(
            await self.call(self.all_services.messages.node_reported, name, self.request.path, self.body, signature)
        )
