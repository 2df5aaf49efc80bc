"""A registry of images, as far as buildah pushes to one and looks into it (OCI distribution). Not a test.

Promises: keeps what it is given in memory, and notes what was uploaded; a real server on a real socket, with TLS.
"""

from __future__ import annotations

import hashlib
import ssl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from coordinator.adapters.clock import SystemClock
from launcher.admission import certificates
from tests.fakes.http_thread import serving_in_thread


@dataclass
class ImageRegistry:
    host: str = ""
    content: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # path -> type and bytes
    uploaded: list[str] = field(default_factory=list)  # paths, in their order


class _Requests(BaseHTTPRequestHandler):
    kept: ImageRegistry
    protocol_version = "HTTP/1.1"

    def _answer(self, status: int, kind: str = "text/plain", body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        kind, body = self.kept.content.get(self.path, ("", b""))
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if self.path == "/v2/":
            self._answer(200)
        elif kind:
            self._answer(200, kind, body, Docker_Content_Digest=digest)
        else:
            self._answer(404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._body()
        self._answer(202, Location=f"{self.path.split('?')[0].rstrip('/')}/{uuid.uuid4().hex}")

    def do_PATCH(self) -> None:
        self.kept.content[self.path] = ("", self._body())
        self._answer(202, Location=self.path)

    def do_PUT(self) -> None:
        body, (path, _, query) = self._body(), self.path.partition("?")
        if "/uploads/" in path:
            _, sent = self.kept.content.pop(path, ("", b""))
            digest = query.partition("digest=")[2].replace("%3A", ":")
            path, body = f"{path.partition('/uploads/')[0]}/{digest}", sent + body
        self._keep(path, body)
        self._answer(201, Location=path)

    def _keep(self, path: str, body: bytes) -> None:
        kind = self.headers.get("Content-Type") or "application/octet-stream"
        self.kept.content[path] = (kind, body)
        self.kept.uploaded.append(path)
        if "/manifests/" in path:
            digest = hashlib.sha256(body).hexdigest()
            self.kept.content[f"{path.rpartition('/')[0]}/sha256:{digest}"] = (kind, body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def registry(folder: Path) -> Iterator[ImageRegistry]:
    """Serve an empty one. In `folder` lies its authority, `authority.pem`, which SSL_CERT_FILE shall name."""
    issued = certificates.make(["localhost"], SystemClock().wall())
    (folder / "authority.pem").write_text(issued.authority)
    (folder / "registry.pem").write_text(issued.certificate + issued.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "registry.pem")
    kept = ImageRegistry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Requests", (_Requests,), {"kept": kept}))
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    kept.host = f"localhost:{server.server_port}"
    with serving_in_thread(server):
        yield kept
