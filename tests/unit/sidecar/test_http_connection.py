"""One connection is kept to the coordinator, and one that is dead costs no request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sidecar.links import http_connection
from sidecar.links.http_connection import HttpConnection, HttpFault
from tests.patience import patient

OK = b"HTTP/1.1 200 OK\r\nX-Signature: s\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nX-Signature: s\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Answers with what `answers` returns for the number of a connection and of its request; None: never."""

    def __init__(self, answers: Callable[[int, int], bytes | None]) -> None:
        self.answers, self.heard = answers, list[bytes]()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        connection, request = len(self.writers), 0
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            size = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
            self.heard.append(head + await reader.readexactly(size))
            request += 1
            if (answer := self.answers(connection, request)) is not None:
                writer.write(answer)
            if answer == b"":
                writer.close()


@asynccontextmanager
async def connected(answers: Callable[[int, int], bytes | None]) -> AsyncIterator[tuple[Server, HttpConnection]]:
    server = Server(answers)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    try:
        yield server, HttpConnection(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/base/")
    finally:
        listener.close()
        for writer in server.writers:
            writer.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, patient(30)))


async def posted(client: HttpConnection, count: int) -> list[bytes]:
    return [(await client.post("/v1/x", {"X-Job": "j"}, b"body")).body for _ in range(count)]


def test_all_requests_go_over_one_connection() -> None:
    async def work() -> None:
        async with connected(lambda *_: OK) as (server, client):
            assert await posted(client, 3) == [b"hi"] * 3
            assert len(server.writers) == 1
            assert server.heard[2].startswith(b"POST /base/v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
            assert b"\r\nX-Job: j\r\n" in server.heard[2] and server.heard[2].endswith(b"\r\n\r\nbody")

    run(work())


def test_a_status_and_headers_come_as_they_were_sent() -> None:
    async def work() -> None:
        async with connected(lambda *_: OK.replace(b"200 OK", b"409 Conflict")) as (_, client):
            answer = await client.post("/v1/x", {}, b"")
            assert (answer.status, answer.headers["x-signature"], answer.body) == (409, "s", b"hi")

    run(work())


@pytest.mark.parametrize(
    "chunks",
    [b"2\r\nhi\r\n0\r\n\r\n", b"1;x=y\r\nh\r\n1\r\ni\r\n0\r\nX-After: z\r\n\r\n"],
    ids=["one chunk", "two, with an extension and a field behind"],
)
def test_a_proxy_may_answer_in_chunks_and_the_connection_is_kept(chunks: bytes) -> None:
    async def work() -> None:
        async with connected(lambda *_: CHUNKED + chunks) as (server, client):
            assert await posted(client, 3) == [b"hi"] * 3
            assert len(server.writers) == 1 and len(server.heard) == 3

    run(work())


def test_a_server_that_has_closed_the_connection_meanwhile_is_asked_over_a_new_one() -> None:
    async def work() -> None:
        async with connected(lambda *_: OK) as (server, client):
            for number in (1, 2, 3):
                await posted(client, 1)
                assert len(server.writers) == number
                server.writers[-1].close()  # as a coordinator that is started again does

    run(work())


@pytest.mark.parametrize("how", [b"", None], ids=["it closes", "it is silent"])
def test_a_kept_connection_that_dies_under_a_request_costs_none(
    monkeypatch: pytest.MonkeyPatch, how: bytes | None
) -> None:
    monkeypatch.setattr(http_connection, "KEPT_S", 0.1)

    async def work() -> None:
        async with connected(lambda connection, request: how if (connection, request) == (1, 2) else OK) as (
            server,
            client,
        ):
            assert await posted(client, 3) == [b"hi"] * 3
            assert len(server.writers) == 2 and len(server.heard) == 4

    run(work())


def test_a_server_that_stands_by_meanwhile_is_left_for_the_one_that_a_new_connection_leads_to() -> None:
    stands_by = OK.replace(b"200 OK", b"503 Service Unavailable")

    async def work() -> None:
        async with connected(lambda connection, request: OK if (connection, request) != (1, 2) else stands_by) as (
            server,
            client,
        ):
            assert await posted(client, 3) == [b"hi"] * 3
            assert len(server.writers) == 2
        async with connected(lambda *_: stands_by) as (server, client):
            for number in (1, 2, 3):
                assert (await client.post("/v1/x", {}, b"")).status == 503
                assert len(server.writers) == number

    run(work())


@pytest.mark.parametrize(
    "last", [OK.replace(b"HTTP/1.1", b"HTTP/1.0"), OK.replace(b"X-Signature: s", b"Connection: close")]
)
def test_a_connection_that_the_server_will_close_is_not_kept(last: bytes) -> None:
    async def work() -> None:
        async with connected(lambda *_: last) as (server, client):
            assert await posted(client, 3) == [b"hi"] * 3
            assert len(server.writers) == 3 == len(server.heard)

    run(work())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n\r\nhi",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        OK.replace(b"Length: 2", b"Length: -2"),
        OK.replace(b"Length: 2", b"Length: 99999999"),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        CHUNKED + b"zz\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"-2\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"1\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"fffff\r\n",
        CHUNKED + b"8000\r\n" + b"x" * 0x8000 + b"\r\n8001\r\n",
        CHUNKED + b"0\r\n" + b"X: y\r\n" * 20_000,
    ],
    ids=[
        "none",
        "no length",
        "no HTTP",
        "no number",
        "too long",
        "too many headers",
        "no chunk's length",
        "a chunk of less than nothing",
        "a chunk that is longer",
        "a chunk too long",
        "chunks too long",
        "endless fields",
    ],
)
def test_what_is_no_whole_answer_is_one_fault_and_the_next_request_works(answer: bytes) -> None:
    async def work() -> None:
        async with connected(lambda connection, _: answer if connection == 1 else OK) as (_, client):
            with pytest.raises(HttpFault):
                await client.post("/v1/x", {}, b"")
            assert await posted(client, 1) == [b"hi"]

    run(work())


def test_a_server_that_is_silent_or_does_not_listen_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "TIMEOUT_S", 0.1)

    async def work() -> None:
        async with connected(lambda *_: None) as (_, client):
            with pytest.raises(HttpFault, match=r"no answer within 0\.1 s"):
                await client.post("/v1/x", {}, b"")
        with pytest.raises(HttpFault, match="Connect"):
            await client.post("/v1/x", {}, b"")

    run(work())
