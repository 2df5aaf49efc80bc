"""CPU time of heartbeats over HTTP: of our server, and of a bare Tornado handler that decodes the same into a dict.

Both serve in this process, in turns; the client is a process of its own, so that its work is not counted. It
keeps its connections, as sidecars do. Besides: how long answers take where sidecars send at their own times.
"""

from __future__ import annotations

import gc
import http.client
import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from statistics import quantiles
from time import process_time
from typing import Any

import msgspec
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from benchmarks.result import WrongAnswer
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE

CONNECTIONS = 8
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
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(CONNECTIONS)]
    for number, message in enumerate(messages):
        _ask(connections[number % CONNECTIONS], message)
    for connection in connections:
        connection.close()


def _ask(connection: http.client.HTTPConnection, message: Message) -> None:
    job, raw, signature = message
    headers = {HEADER_JOB: job, HEADER_LAUNCH: "1", HEADER_SIGNATURE: signature, "Content-Type": "application/json"}
    connection.request("POST", ADDRESS, raw, headers)
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200 or b'"known":false' in answer:
        raise WrongAnswer(f"a heartbeat was answered {response.status}: {answer[:200]!r}")


def waits_s(port: int, messages: list[Message], within_s: float) -> float:
    """The 99th percentile of the seconds from when a message was due to its answer; they are due evenly in `within_s`.

    A message that had to wait for the one before it counts from when it was due, so a server that falls behind shows.
    """
    began, taken = time.monotonic() + 0.1, list[float]()

    def some(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for number in range(first, len(messages), CONNECTIONS):
            due = began + within_s * number / len(messages)
            time.sleep(max(0.0, due - time.monotonic()))
            _ask(connection, messages[number])
            taken.append(time.monotonic() - due)
        connection.close()

    threads = [threading.Thread(target=some, args=(first,)) for first in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(taken) != len(messages):
        raise WrongAnswer(f"{len(messages) - len(taken)} heartbeats were not answered")
    return quantiles(taken, n=100)[-1]
