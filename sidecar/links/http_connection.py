"""Posts to one HTTP server over a kept-alive connection (RFC 9112).

Promise: a request is sent again over a new connection if the kept one has closed, brings no answer within `KEPT_S`, or
leads to a server that cannot answer now (5xx); so one may arrive twice. One address may front several servers of which
one is active: a new connection leads to that one. Every failure is an `HttpFault`. Called by `coordinator_link.py`.
Tornado's client opens a connection per request, which would take most of a sidecar's CPU time.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

TIMEOUT_S, KEPT_S = 5.0, 1.0  # for an answer over a new connection, over a kept one
UNABLE = 500  # from this status on, such as a standby coordinator's
LIMIT = 64 * 1024  # bytes of an answer's head, and of its body

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HttpFault(Exception):
    """Raised when there was no complete answer; the argument is a sentence."""


@dataclass(frozen=True)
class HttpAnswer:
    """An answer. `headers`: by lower-case name; `lasts`: whether the server keeps the connection open."""

    status: int
    headers: dict[str, str]
    body: bytes
    lasts: bool


class HttpConnection:
    """Keeps at most one connection open."""

    def __init__(self, base: str) -> None:
        """`base`: the URL to whose path request paths are appended."""
        url = urlsplit(base)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._host, self._port = url.hostname or "", url.port or (443 if self._tls else 80)
        self._path, self._authority = url.path.rstrip("/"), url.netloc.rpartition("@")[2]
        self._kept: Streams | None = None

    async def post(self, path: str, headers: dict[str, str], body: bytes) -> HttpAnswer:
        """Return the answer, whatever its status. Raises `HttpFault`."""
        fields = {"Host": self._authority, **headers, "Content-Length": str(len(body))}
        lines = [f"POST {self._path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        request = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        kept, self._kept = self._kept, None
        if kept is not None:
            try:
                answer = await self._exchange(kept, request, KEPT_S)
                if answer.status < UNABLE:
                    return answer
            except HttpFault:  # as when the coordinator restarted or moved to another machine
                pass
        return await self._exchange(None, request, TIMEOUT_S)

    async def _exchange(self, kept: Streams | None, request: bytes, timeout_s: float) -> HttpAnswer:
        streams = kept
        try:
            async with asyncio.timeout(timeout_s):
                streams = streams or await self._connect()
                if streams[0].at_eof():
                    raise HttpFault("it has closed the connection")
                streams[1].write(request)
                answer = await _read(streams[0])
            if answer.lasts and answer.status < UNABLE and self._kept is None:
                self._kept, streams = streams, None
            return answer
        except TimeoutError:
            raise HttpFault(f"no answer within {timeout_s:g} s") from None
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as fault:
            raise HttpFault(str(fault)) from None
        finally:
            if streams is not None:
                streams[1].close()

    async def _connect(self) -> Streams:
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=LIMIT)


async def _read(reader: asyncio.StreamReader) -> HttpAnswer:
    """Read one answer. Raises `HttpFault`, or what the reader raises."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length, chunked = headers.get("content-length", ""), headers.get("transfer-encoding", "").lower() == "chunked"
    if not version.startswith("HTTP/1.") or not status[:3].isdecimal() or not (chunked or length.isdecimal()):
        raise HttpFault("its answer is none of HTTP/1.1 with a Content-Length or in chunks")
    lasts = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    body = await _chunks(reader) if chunked else await _exactly(reader, int(length))
    return HttpAnswer(int(status[:3]), headers, body, lasts)


async def _exactly(reader: asyncio.StreamReader, size: int, before: int = 0) -> bytes:
    if before + size > LIMIT:
        raise HttpFault(f"its answer has more than {LIMIT} bytes")
    return await reader.readexactly(size)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """Return a chunked body, as a proxy in between may send."""
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        body += await _exactly(reader, size, len(body))
        if await reader.readexactly(2) != b"\r\n":
            raise HttpFault("a chunk of its answer is longer than it says")
    left = LIMIT
    while (field := await reader.readuntil(b"\r\n")) != b"\r\n":  # skip the trailers
        left -= len(field)
        if left < 0:
            raise HttpFault(f"more than {LIMIT} bytes follow its answer")
    return body
