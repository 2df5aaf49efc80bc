"""Limits of a server that ten thousand sidecars talk to: of time and size of what one of them sends, of open files.

Promise: a want of descriptors costs connections, never the rest of this process: beyond what leaves it enough for its
store and its threads, the connection that asked longest ago of whoever has most is closed for a new one, so that nobody
locks others out. One that cannot even be accepted is turned away, and one whose answers nobody reads is closed.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream
from tornado.web import Application

IDLE_S = 60.0  # seconds that a connection may stay open without a request
UNREAD_S = 30.0  # seconds that an answer may wait for a client to read on
LARGEST_HEADER = 16 * 1024  # bytes
CONNECTIONS = 65_536  # open files that are enough for ten thousand sidecars, launchers, browsers and the store
BODY_LIMIT = 64 * 1024  # bytes (`reliability.md` 6)
BODY_S = 10.0  # seconds in which a request's body must arrive
KEPT = 512  # open files that are kept for the rest of the process, at most half of all
PAUSE_S = 0.05  # where nobody can be turned away


class Listener(socket.socket):
    """A listening socket that turns callers away while there is no descriptor, where tornado would try for ever."""

    _spare: int | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        if self._spare is None:
            self._take_spare()
        try:
            return super().accept()
        except OSError as fault:
            if fault.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._turn_away()
            raise BlockingIOError from None  # nobody is to be served now

    def _turn_away(self) -> None:
        if self._spare is None:
            time.sleep(PAUSE_S)
            return
        os.close(self._spare)
        self._spare = None
        try:
            super().accept()[0].close()
        except OSError:  # he has gone, or another thread was faster
            pass
        self._take_spare()

    def _take_spare(self) -> None:
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._spare = None

    def close(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
        self._spare = None
        super().close()


class LimitedServer(HTTPServer):
    """A server that has at most so many connections as leave the process the descriptors that it needs itself."""

    _between_requests: dict[str, dict[IOStream, None]]
    """Connections that ask nothing at the moment, by who opened them; the one that asked longest ago first."""

    def initialize(self, *args: Any, opened_by: Mapping[IOStream, str], **kwargs: Any) -> None:  # type: ignore[override]
        """`opened_by`: who has opened a connection, once a request over it has shown that."""
        super().initialize(*args, **kwargs)
        self._open: set[IOStream] = set()  # without those that we have closed and Tornado still knows
        self._between_requests = {}
        self._opened_by = opened_by

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        super().add_sockets([Listener(fileno=one.detach()) for one in sockets])

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        if len(self._open) >= most_connections() and not self._close_an_idle_one():
            stream.close()
            return
        if stream.socket.family != socket.AF_UNIX:  # where there is no such limit
            stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * UNREAD_S))
        self._open.add(stream)
        self._asks_nothing(stream)
        super().handle_stream(stream, address)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        stream = cast(HTTP1Connection, request_conn).stream
        self._asks_nothing(stream)
        return _Asks(super().start_request(server_conn, request_conn), lambda: self._asks(stream))

    def on_close(self, server_conn: object) -> None:
        stream = cast(HTTP1ServerConnection, server_conn).stream
        self._open.discard(stream)
        self._asks(stream)
        super().on_close(server_conn)

    def _who(self, stream: IOStream) -> str:
        """Return who has opened a connection: whoever has not shown that yet counts as one with all such others."""
        return self._opened_by.get(stream, "")

    def _asks_nothing(self, stream: IOStream) -> None:
        """Note that a connection could be closed without breaking a request off."""
        if stream in self._open:
            self._between_requests.setdefault(self._who(stream), {})[stream] = None

    def _asks(self, stream: IOStream) -> None:
        """Note that a connection is no longer one that could be closed without breaking a request off."""
        who = self._who(stream)
        idle = self._between_requests.get(who, {})
        idle.pop(stream, None)
        if not idle:
            self._between_requests.pop(who, None)

    def _close_an_idle_one(self) -> bool:
        """Close the connection that asked longest ago, of whoever has most; False if all are being answered.

        That breaks nothing off: whoever keeps a connection open opens another one for the next request.
        """
        most = max(self._between_requests.values(), key=len, default=None)
        if most is None:
            return False
        oldest = next(iter(most))
        self._open.discard(oldest)
        self._asks(oldest)
        oldest.close()
        return True


class _Asks(HTTPMessageDelegate):
    """Passes a request on, and tells once its headers have come."""

    def __init__(self, request: HTTPMessageDelegate, came: Callable[[], object]) -> None:
        self._request = request
        self._came = came

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._came()
        return self._request.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._request.data_received(chunk)

    def finish(self) -> None:
        self._request.finish()

    def on_connection_close(self) -> None:
        self._request.on_connection_close()


def limited_server(
    serves: Application | HTTPServerConnectionDelegate,
    max_body: int = BODY_LIMIT,
    opened_by: Mapping[IOStream, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> HTTPServer:
    """A server without a socket. A connection with a longer body is cut without an error body.

    `opened_by`: who has opened a connection, once a request over it has shown that. `tls`: None for plain HTTP.
    """
    allow_connections()
    return LimitedServer(
        serves,
        max_body_size=max_body,
        max_header_size=LARGEST_HEADER,
        body_timeout=BODY_S,
        idle_connection_timeout=IDLE_S,
        opened_by={} if opened_by is None else opened_by,
        ssl_options=tls,
    )


def allow_connections() -> None:
    """Let this process have many files open: each sidecar keeps a connection, and many systems begin with 1,024."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = CONNECTIONS if most == resource.RLIM_INFINITY else min(CONNECTIONS, most)
    if few != resource.RLIM_INFINITY and few < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))


def most_connections() -> int:
    """Return how many connections a server may have."""
    few, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = CONNECTIONS if few == resource.RLIM_INFINITY else few
    return files - min(KEPT, files // 2)
