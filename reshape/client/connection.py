"""Sends requests to a coordinator: each on a connection of its own, with the token.

Raises `CoordinatorRefused` with the sentence of the coordinator where it refuses, `CoordinatorUnreachable` where it
does not answer. Called by `reshape/client/client.py`.
"""

from __future__ import annotations

import contextlib
import getpass
import http.client
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

UNIX = "unix:"  # before the path of a socket, in place of a URL
SOCKET = "/run/reshape/reshape.sock"  # of the `reshape up` that all users of this machine share
TIMEOUT_S = 15.0  # the coordinator gives up after 10
SILENCE_S = 40.0  # an event stream sends something every 15

View = dict[str, Any]


class CoordinatorUnreachable(Exception):
    """Raised if no coordinator answers; the sentence says what to do."""


class CoordinatorRefused(Exception):
    """Raised if the coordinator answered with an error. `problems` has one sentence per fault."""

    def __init__(self, sentence: str, status: int, problems: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.status = status
        self.problems = tuple(problems)


def refused(job_ids: Iterable[str], call: Callable[[str], object]) -> Iterator[tuple[str, CoordinatorRefused]]:
    """Call once for each of these jobs; yield those that are refused, with the refusal, and go on behind them."""
    for job_id in job_ids:
        try:
            call(job_id)
        except CoordinatorRefused as refusal:
            yield job_id, refusal


def users_socket() -> Path:
    """Return the socket of the `reshape up` that all users of this machine share, whether or not there is one."""
    return Path(os.environ.get("RESHAPE_SOCKET") or SOCKET)


class _UnixConnection(http.client.HTTPConnection):
    """Reaches a coordinator by a Unix socket, which tells it what user this is."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Connection:
    """Reaches one coordinator. Safe to use from several threads."""

    def __init__(self, url: str, token: str) -> None:
        """`url`: http or https, or `unix:` and the path of a socket, which needs no token."""
        self._socket = url.removeprefix(UNIX) if url.startswith(UNIX) else ""
        if self._socket:
            self.url = url
            self._token = ""
            self._prefix = ""
            return
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CoordinatorUnreachable(f"{url!r} is not the address of a coordinator, such as http://127.0.0.1:8080.")
        self.url = url.rstrip("/")
        self._token = token
        try:
            port = parts.port
        except ValueError as why:
            raise CoordinatorUnreachable(f"{url!r} is not the address of a coordinator: {why}.") from None
        self._host, self._port, self._prefix = parts.hostname, port, parts.path.rstrip("/")
        self._secure = parts.scheme == "https"

    def ask(self, method: str, path: str, doc: Mapping[str, Any] | None = None) -> View:
        """Send a request and return the answer's JSON object."""
        _, text = self.call(method, path, doc)
        answer: View = json.loads(text)
        return answer

    def call(
        self, method: str, path: str, doc: Mapping[str, Any] | None = None
    ) -> tuple[http.client.HTTPMessage, bytes]:
        """Send a request and return the answer's headers and body."""
        connection = self.connected(TIMEOUT_S)
        try:
            response = self.send(connection, method, path, doc)
            text = response.read()
        except (OSError, http.client.HTTPException):
            raise CoordinatorUnreachable(
                f"The coordinator at {self.url} closed the connection; is it still running?"
            ) from None
        finally:
            connection.close()
        if response.status >= 400:
            raise _refusal(response.status, text)
        return response.headers, text

    def connected(self, timeout: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._socket:
            connection = _UnixConnection(self._socket, timeout)
        else:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            connection = kind(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
        except OSError:
            if self._socket:
                ask = "ask the administrator of this machine whether the service `reshape` runs"
                raise CoordinatorUnreachable(f"No coordinator answers at {self._socket}; {ask}.") from None
            hint = "start one with `reshape up`, or see whether the port-forward to a cluster's still runs"
            raise CoordinatorUnreachable(f"No coordinator answers at {self.url}; {hint}.") from None
        return connection

    def send(
        self, connection: http.client.HTTPConnection, method: str, path: str, doc: Mapping[str, Any] | None = None
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        body = None
        if doc is not None:
            headers |= {} if self._socket else {"X-Reshape-User": user_name()}
            headers["Content-Type"] = "application/json"
            body = json.dumps(doc, default=str).encode()
        connection.request(method, self._prefix + path, body, headers)
        return connection.getresponse()


def user_name() -> str:
    """Return the name of the user who runs this, as `owner` in a job's document may hold it; empty if unknown."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # of a container, perhaps: a user without a name
        return ""
    return user if re.fullmatch(r"[\w.@-]{1,64}", user, re.ASCII) else ""


class EventStream(Iterator[View]):
    """Events as they happen, until the coordinator goes away or any thread calls `close`."""

    def __init__(self, sender: Connection, path: str, job_id: str | None = None) -> None:
        """`job_id`: only events of that job."""
        self._sender, self._path, self._job_id = sender, path, job_id
        self._socket: socket.socket | None = None
        self._closed = False
        self._events = self._read()

    def __next__(self) -> View:
        return next(self._events)

    def close(self) -> None:
        """End it; a thread that waits for the next event is told that there is none."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> Iterator[View]:
        connection = self._sender.connected(SILENCE_S)
        self._socket = connection.sock
        try:
            response = self._sender.send(connection, "GET", self._path)
            if response.status != 200:
                raise _refusal(response.status, response.read())
            for line in response:
                if self._closed:
                    return
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if self._job_id is None or str(event.get("job_id")) == self._job_id:
                        yield event
        except (OSError, ValueError, http.client.HTTPException):  # it broke off, maybe within a line
            return
        finally:
            connection.close()


def _refusal(status: int, text: bytes) -> CoordinatorRefused:
    try:
        error = json.loads(text)["error"]
        return CoordinatorRefused(str(error["sentence"]), status, [str(p) for p in error["problems"]])
    except (ValueError, KeyError, TypeError):
        pass
    try:  # /healthz keeps its own form
        return CoordinatorRefused(str(json.loads(text)["sentence"]), status)
    except (ValueError, KeyError, TypeError):
        return CoordinatorRefused(f"The coordinator answered {status} without saying why; its log may.", status)
