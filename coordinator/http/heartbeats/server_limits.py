"""Limits of a server that ten thousand sidecars talk to: of time and size of what one of them sends, of open files."""

from __future__ import annotations

import resource

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerConnectionDelegate
from tornado.web import Application

from coordinator.http.base import BODY_LIMIT, BODY_S

IDLE_S = 60.0  # seconds that a connection may stay open without a request
LARGEST_HEADER = 16 * 1024  # bytes
CONNECTIONS = 65_536  # open files that are enough for ten thousand sidecars, launchers, browsers and the store


def limited_server(serves: Application | HTTPServerConnectionDelegate, max_body: int = BODY_LIMIT) -> HTTPServer:
    """A server without a socket. A connection with a longer body is cut without an error body."""
    allow_connections()
    return HTTPServer(
        serves, max_body_size=max_body, max_header_size=LARGEST_HEADER, body_timeout=BODY_S,
        idle_connection_timeout=IDLE_S,
    )  # fmt: skip


def allow_connections() -> None:
    """Let this process have many files open: each sidecar keeps a connection, and many systems begin with 1,024."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = CONNECTIONS if most == resource.RLIM_INFINITY else min(CONNECTIONS, most)
    if few != resource.RLIM_INFINITY and few < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
