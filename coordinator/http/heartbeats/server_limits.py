"""Limits of a server that ten thousand sidecars talk to: of time and size of what one of them sends, of open files.

Promise: a want of descriptors costs connections, never the rest of this process: connections beyond what leaves it
enough for its store and its threads are closed as they come, and one that cannot even be accepted is turned away.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from collections.abc import Iterable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerConnectionDelegate
from tornado.web import Application

from coordinator.http.base import BODY_LIMIT, BODY_S

IDLE_S = 60.0  # seconds that a connection may stay open without a request
LARGEST_HEADER = 16 * 1024  # bytes
CONNECTIONS = 65_536  # open files that are enough for ten thousand sidecars, launchers, browsers and the store
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

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        super().add_sockets([Listener(fileno=one.detach()) for one in sockets])

    def _handle_connection(self, connection: socket.socket, address: Any) -> None:
        if len(self._connections) >= most_connections():
            connection.close()
            return
        super()._handle_connection(connection, address)


def limited_server(serves: Application | HTTPServerConnectionDelegate, max_body: int = BODY_LIMIT) -> HTTPServer:
    """A server without a socket. A connection with a longer body is cut without an error body."""
    allow_connections()
    return LimitedServer(
        serves, max_body_size=max_body, max_header_size=LARGEST_HEADER, body_timeout=BODY_S,
        idle_connection_timeout=IDLE_S,
    )  # fmt: skip


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
