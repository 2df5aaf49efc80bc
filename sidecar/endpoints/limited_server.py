"""An HTTP server that never has more connections than it needs: many callers must not cost the sidecar its own files.

A sidecar without descriptors could send no heartbeat and read nothing of its trainer. Promise: beyond `MOST`
connections the one that has asked longest ago is closed for a new one, so the coordinator is served next to any number
of others.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream

MOST = 64  # connections: of the coordinator, an operator, a kubelet, Prometheus, and some more


class FewConnectionsServer(HTTPServer):
    """Closes connections that are not being answered; whoever keeps one open opens another for the next request."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self._open: set[IOStream] = set()
        self._unasked: dict[IOStream, None] = {}  # those with no whole request, the one that asked longest ago first

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        if len(self._open) >= MOST and not self._close_one():
            stream.close()
            return
        self._open.add(stream)
        self._unasked[stream] = None
        super().handle_stream(stream, address)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        stream = cast(HTTP1Connection, request_conn).stream
        if stream in self._open:
            self._unasked[stream] = None
        return _Request(super().start_request(server_conn, request_conn), self._unasked, stream)

    def on_close(self, server_conn: object) -> None:
        self._forget_connection(cast(HTTP1ServerConnection, server_conn).stream)
        super().on_close(server_conn)

    def _close_one(self) -> bool:
        """Return False if all are being answered."""
        oldest = next(iter(self._unasked), None)
        if oldest is None:
            return False
        self._forget_connection(oldest)
        oldest.close()
        return True

    def _forget_connection(self, stream: IOStream) -> None:
        self._open.discard(stream)
        self._unasked.pop(stream, None)


class _Request(HTTPMessageDelegate):
    """Passes a request on, and notes that it has come as a whole."""

    def __init__(self, request: HTTPMessageDelegate, unasked: dict[IOStream, None], stream: IOStream) -> None:
        self._request = request
        self._unasked = unasked
        self._stream = stream

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        return self._request.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._request.data_received(chunk)

    def finish(self) -> None:
        self._unasked.pop(self._stream, None)
        self._request.finish()

    def on_connection_close(self) -> None:
        self._request.on_connection_close()
