"""Sends signed HTTP calls to sidecars; unsigned answers are rejected."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from coordinator.errors import Conflict, Fatal, Transient
from sidecar.protocol import (
    HEADER_JOB,
    HEADER_LAUNCH,
    HEADER_SIGNATURE,
    CheckpointCall,
    ShimStatus,
    StartCall,
    StopCall,
    sign,
    signed,
)

TIMEOUT_S = 5.0  # between two parts of an answer
WHOLE_S = 15.0  # for all of it: a program in the sidecar's place may send it byte by byte, and hold us up
ANSWER_MAX = 65_536
OUTPUT_MAX = 45_000  # bytes of output in one answer, which holds them as base 64

T = TypeVar("T", bound=msgspec.Struct)


class _Output(msgspec.Struct):
    """The answer to `/v1/output`."""

    data: bytes  # base 64 in JSON
    offset: int  # after them


class HttpSidecars:
    """One short connection per call: a reshape makes two, and a sidecar may be gone at any time."""

    def start(self, url: str, key: bytes, job: str, launch: int, call: StartCall) -> ShimStatus:
        return self._post(url, key, job, launch, "/v1/start", call, ShimStatus)

    def stop(self, url: str, key: bytes, job: str, launch: int, call: StopCall) -> ShimStatus:
        return self._post(url, key, job, launch, "/v1/stop", call, ShimStatus)

    def checkpoint(self, url: str, key: bytes, job: str, launch: int, call: CheckpointCall) -> ShimStatus:
        return self._post(url, key, job, launch, "/v1/checkpoint", call, ShimStatus)

    def read_output(self, url: str, key: bytes, job: str, launch: int, offset: int, limit: int) -> tuple[bytes, int]:
        call = {"offset": offset, "limit": min(limit, OUTPUT_MAX)}
        found = self._post(url, key, job, launch, "/v1/output", call, _Output)
        return found.data, found.offset

    def _post(self, url: str, key: bytes, job: str, launch: int, path: str, call: Any, kind: type[T]) -> T:
        body = msgspec.json.encode(call)
        headers = {
            HEADER_JOB: job,
            HEADER_LAUNCH: str(launch),
            HEADER_SIGNATURE: sign(key, "POST", path, body),
            "Content-Type": "application/json",
        }
        status, answer, signature = ask(url, path, body, headers)
        if status == 409:
            raise Conflict(f"the sidecar of job {job} has seen a higher generation: {_text(answer)}")
        if status in (502, 503, 504):
            raise Transient(f"the sidecar of job {job} cannot act now: {_text(answer)}")
        if status != 200:
            raise Fatal(f"the sidecar of job {job} refused {path} ({status}): {_text(answer)}")
        if not signed(key, "REPLY", path, answer, signature):
            raise Transient(f"the answer of job {job}'s sidecar to {path} is not signed with its launch key")
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Transient(f"the answer of job {job}'s sidecar cannot be read: {error}") from None


def ask(url: str, path: str, body: bytes, headers: dict[str, str], who: str = "sidecar") -> tuple[int, bytes, str]:
    """Return status, body and signature of the answer to a `POST`. `Transient` if there is none."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT_S)
    watch = threading.Timer(WHOLE_S, _hang_up, (connection,))
    watch.daemon = True
    watch.start()
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read(ANSWER_MAX), response.getheader(HEADER_SIGNATURE) or ""
    except (OSError, http.client.HTTPException) as error:
        raise Transient(f"the {who} at {url} does not answer: {error or type(error).__name__}") from None
    finally:
        watch.cancel()
        connection.close()


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """End a call from another thread, which then reads that nothing more comes."""
    if (open_socket := connection.sock) is not None:
        with contextlib.suppress(OSError):  # it has just ended by itself
            open_socket.shutdown(socket.SHUT_RDWR)


def _text(answer: bytes) -> str:
    return answer[:300].decode("utf-8", "replace")
