"""CPU time of heartbeats over HTTP: of our server, and of a bare Tornado handler that decodes the same into a dict.

Both serve in this process, in turns; the client is a process of its own, so that its work is not counted. It
keeps its connections, as sidecars do. Besides: how long answers take where sidecars send at their own times.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import select
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import quantiles
from time import process_time
from typing import Any, Self

import msgspec
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from benchmarks.result import WrongAnswer
from coordinator.http.server_limits import allow_connections
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE

CONNECTIONS = 8
ANSWER_S = 60.0  # after which an answer comes no more
SPARE_FILES = 100
ADDRESS = "/v1/heartbeats"
Message = tuple[str, bytes, str]  # job, body, signature


class Bare(RequestHandler):
    newest: dict[str, Any] = {}

    def post(self) -> None:
        beat = msgspec.json.decode(self.request.body)
        self.newest[beat["job_id"]] = beat
        self.set_header("Content-Type", "application/json")
        self.write(b"{}")


def bare() -> HTTPServer:
    return HTTPServer(Application([(ADDRESS, Bare)]))


@contextmanager
def client() -> Iterator[Executor]:
    """A process that sends."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(len, b"").result()
        yield pool


def taken(pool: Executor, port: int, messages: list[Message]) -> float:
    """CPU milliseconds of this process for each message."""
    gc.collect()
    began = process_time()
    pool.submit(send, port, messages).result()
    return 1000 * (process_time() - began) / len(messages)


def send(port: int, messages: list[Message]) -> None:
    """Send them one after the other, on some connections in turn."""
    with ExitStack() as stack:
        sidecars = [stack.enter_context(Sidecar(port)) for _ in range(CONNECTIONS)]
        for number, message in enumerate(messages):
            sidecars[number % CONNECTIONS].ask(message)


def waits_s(port: int, rounds: Sequence[Sequence[Message]], within_s: float) -> list[float]:
    """For each round but the first the 99th percentile of the seconds from when a message was due to its answer.

    Each sidecar keeps a connection of its own. The messages of a round are due evenly within `within_s`, and count from
    then, so a server that falls behind shows. The first round, one message after the other, opens the connections.
    """
    allow_connections()
    few, enough = resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(rounds[0]) + SPARE_FILES
    if few != resource.RLIM_INFINITY and few < enough:
        raise WrongAnswer(f"this user may have {few} files open, and {enough} are needed: raise it (`ulimit -n`)")
    with ExitStack() as stack, select.epoll() as poll:
        sidecars = [stack.enter_context(Sidecar(port)) for _ in rounds[0]]
        for sidecar, message in zip(sidecars, rounds[0], strict=True):
            sidecar.ask(message)
            poll.register(sidecar.socket, select.EPOLLIN)
        found = (_answered_s(poll, sidecars, messages, within_s) for messages in rounds[1:])
        return [quantiles(taken, n=100)[-1] for taken in found]


class Sidecar:
    """A connection that is kept."""

    def __init__(self, port: int) -> None:
        self.due = 0.0
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, message: Message) -> None:
        """Have it answered before anything else is sent."""
        self.socket.sendall(_request(message))
        self.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def take(self) -> float:
        """Read the answer; returns seconds since the message was due."""
        answer = self.socket.recv(65_536)
        if not answer.startswith(b"HTTP/1.1 200 ") or b'"known":false' in answer:
            raise WrongAnswer(f"a heartbeat was answered {answer[:300]!r}")
        return time.monotonic() - self.due


def _answered_s(
    poll: select.epoll, sidecars: Sequence[Sidecar], messages: Sequence[Message], within_s: float
) -> list[float]:
    """The seconds of each answer of a round."""
    requests, by_file = list(map(_request, messages)), {each.socket.fileno(): each for each in sidecars}
    began, sent, taken = time.monotonic() + 0.1, 0, list[float]()
    while len(taken) < len(sidecars):
        due = began + within_s * sent / len(sidecars)
        if sent < len(sidecars) and due <= time.monotonic():
            sidecars[sent].due = due
            sidecars[sent].socket.sendall(requests[sent])
            sent += 1
            continue
        waits = max(0.0, due - time.monotonic()) if sent < len(sidecars) else ANSWER_S
        came = poll.poll(waits)
        if not came and waits == ANSWER_S:
            raise WrongAnswer(f"{sent - len(taken)} heartbeats were not answered within {ANSWER_S:.0f} s")
        taken += [by_file[file].take() for file, _ in came]
    return taken


def _request(message: Message) -> bytes:
    job, raw, signature = message
    headers = {
        "Host": "127.0.0.1", HEADER_JOB: job, HEADER_LAUNCH: "1", HEADER_SIGNATURE: signature,
        "Content-Type": "application/json", "Content-Length": len(raw),
    }  # fmt: skip
    lines = [f"POST {ADDRESS} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + raw
