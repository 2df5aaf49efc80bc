"""The heartbeat process: `python -m coordinator.http.heartbeats.heartbeat_server MESSAGES CONNECTIONS`.

Its arguments are the numbers of two sockets that `heartbeat_process` opened. Over the second one come connections of
sidecars. What they send goes over the first one to the coordinator, all that has come in one turn of the loop in one
list. What is no heartbeat of a job that the coordinator has in memory is answered with 503: a sidecar then asks again
over a new connection, which leads to the coordinator itself. Ends with the coordinator.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import suppress
from itertools import count
from typing import cast

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream

from coordinator.errors import Unauthorized
from coordinator.giving_way import collect_rarely
from coordinator.http.base import ALWAYS
from coordinator.http.heartbeats.heartbeat_messages import Answered, Asked, MessageLink
from coordinator.http.heartbeats.heartbeat_request import HeartbeatRequest, Sender, is_heartbeat, sender
from coordinator.http.server_limits import limited_server

ASK_THE_COORDINATOR = "Ask the coordinator itself."


class PassedOn(HeartbeatRequest):
    """A request that waits for the coordinator's answer."""

    def __init__(self, server: HeartbeatServer, connection: HTTP1Connection) -> None:
        super().__init__(connection)
        self._server, self._number = server, -1
        self._sender: Sender | None = None  # None: this is no heartbeat of a sidecar

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        super().headers_received(start_line, headers)
        asked = cast(RequestStartLine, start_line)
        if is_heartbeat(asked.method, asked.path, headers):
            with suppress(Unauthorized):  # the coordinator says so
                self._sender = sender(headers)

    def finish(self) -> None:
        self.body_came()
        if self._sender is None:
            self.refuse()
        else:
            self._number = self._server.ask(self, self._sender, self.body)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._server.forget_connection(self._number)

    def refuse(self) -> None:
        """Have the sidecar ask the coordinator itself."""
        headers = HTTPHeaders(ALWAYS)
        headers["Connection"] = "close"
        headers["Content-Type"] = "text/plain"
        headers["Content-Length"] = str(len(ASK_THE_COORDINATOR))
        start = ResponseStartLine("", 503, "Service Unavailable")
        self.connection.write_headers(start, headers, ASK_THE_COORDINATOR.encode())
        self.connection.finish()


class HeartbeatServer(HTTPServerConnectionDelegate):
    """Passes heartbeats on, and the answers back."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._waiting: dict[int, PassedOn] = {}
        self._numbers = count()
        self._asked: list[Asked] = []  # of this turn of the loop
        self.link = MessageLink(Answered, self._answer, ended.set)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> PassedOn:
        return PassedOn(self, cast(HTTP1Connection, request_conn))

    def ask(self, request: PassedOn, of: Sender, body: bytes) -> int:
        """Have the coordinator answer; returns the number for `forget`."""
        number = next(self._numbers)
        self._waiting[number] = request
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._send)
        self._asked.append(Asked(number, of.job_id, of.launch, of.signature, body))
        return number

    def forget_connection(self, number: int) -> None:
        """Its connection is closed."""
        self._waiting.pop(number, None)

    def _send(self) -> None:
        asked, self._asked = self._asked, []
        self.link.send(asked)

    def _answer(self, answers: list[Answered]) -> None:
        for answer in answers:
            request = self._waiting.pop(answer.number, None)
            if request is None:
                continue
            if answer.signature:
                request.reply(answer.body, answer.signature)
            else:
                request.refuse()


def take_connections(server: HTTPServer, connections: socket.socket) -> None:
    """Serve all connections that have come from the coordinator."""
    while True:
        try:
            _, (number,), _, _ = socket.recv_fds(connections, 1, 1)
        except (BlockingIOError, ValueError):  # none is left, or the coordinator has ended
            return
        connection = socket.socket(fileno=number)
        try:
            connection.setblocking(False)
            server.handle_stream(IOStream(connection), connection.getpeername())
        except OSError:  # it was closed on the way
            connection.close()


async def serve(messages: socket.socket, connections: socket.socket) -> None:
    """Serve until the coordinator has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    heartbeats = HeartbeatServer(ended)
    await loop.create_connection(lambda: heartbeats.link, sock=messages)
    server = limited_server(heartbeats)
    loop.add_reader(connections, take_connections, server, connections)
    collecting = asyncio.create_task(collect_rarely())
    await ended.wait()
    collecting.cancel()


def main(numbers: list[str]) -> None:
    for end in (signal.SIGINT, signal.SIGTERM):  # which a terminal sends to all: this one ends after the coordinator
        signal.signal(end, signal.SIG_IGN)
    messages, connections = (socket.socket(fileno=int(number)) for number in numbers)
    for each in (messages, connections):
        each.setblocking(False)
    asyncio.run(serve(messages, connections))


if __name__ == "__main__":
    main(sys.argv[1:])
