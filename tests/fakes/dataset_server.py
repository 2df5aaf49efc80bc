"""A web server with one data set that breaks off, dawdles, changes and answers as a test says. Not a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.fakes.http_thread import serving_in_thread


@dataclass
class DataServer:
    content: bytes
    url: str = ""
    tag: str = '"one"'  # its ETag; empty: it has none, and cannot be gone on with
    broken: int = 0  # so many answers break off, each after `piece` bytes
    piece: int = 1000
    status: int = 200
    location: str = ""  # where another status leads to
    length: int | None = None  # what it says, in place of the truth
    go: threading.Event = field(default_factory=threading.Event)  # it sends only `piece` bytes until this is set
    asked: list[str] = field(default_factory=list)  # by each request: the Range, or its path


class _Answers(BaseHTTPRequestHandler):
    data: DataServer

    def do_GET(self) -> None:
        data, span = self.data, self.headers.get("Range")
        data.asked.append(span or self.path)
        if data.status != 200:
            self.send_response(data.status)
            if data.location:
                self.send_header("Location", data.location)
            self.end_headers()
            return
        start = int(span.split("=")[1][:-1]) if span and self.headers.get("If-Range") == data.tag else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data.content) - 1}/{len(data.content)}")
        if data.tag:
            self.send_header("ETag", data.tag)
        self.send_header("Content-Length", str(data.length or len(data.content) - start))
        self.end_headers()
        self.wfile.write(data.content[start : start + data.piece])
        self.wfile.flush()
        if data.broken:
            data.broken -= 1
        elif data.go.wait(60):
            self.wfile.write(data.content[start + data.piece :])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(content: bytes, host: str = "127.0.0.1") -> Iterator[DataServer]:
    """Serve it under /data.npz; at once, unless a test clears `go`."""
    data = DataServer(content)
    data.go.set()
    server = ThreadingHTTPServer((host, 0), type("Answers", (_Answers,), {"data": data}))
    server.daemon_threads = True
    data.url = f"http://{host}:{server.server_port}/data.npz"
    with serving_in_thread(server):
        try:
            yield data
        finally:
            data.go.set()
