"""A request of which only half is sent is held for no longer than an idle connection, wherever we listen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from coordinator.http import server_limits
from launcher.admission import webhook
from sidecar.endpoints import limited_server, server
from tests.patience import patient

SERVERS: list[tuple[ModuleType, Callable[[], HTTPServer]]] = [
    (server, lambda: server.make_reader(cast(Any, None))),
    (server_limits, lambda: webhook.make_server(cast(Any, None), None, lambda: True, lambda: b"")),
]


@pytest.mark.parametrize(("module", "make"), SERVERS, ids=["sidecar", "webhook"])
def test_half_of_a_header_does_not_hold_a_connection(
    module: ModuleType, make: Callable[[], HTTPServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.IDLE_S <= 60
    monkeypatch.setattr(module, "IDLE_S", 0.2)

    async def half() -> bytes:
        serves = make()
        sockets = bind_sockets(0, "127.0.0.1")
        address = sockets[0].getsockname()
        serves.add_sockets(sockets)
        try:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"POST /v1/start HTTP/1.1\r\nContent-Le")
            return await asyncio.wait_for(reader.read(), patient(10))
        finally:
            serves.stop()

    assert asyncio.run(half()) == b""


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_connections_cost_a_sidecar_neither_its_files_nor_its_coordinator() -> None:
    """Some ask nothing, some again and again, some half: the newest is served, and few are open."""
    half = b"POST /v1/start HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
    whole = b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n"

    async def asked(address: Any, words: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(words)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), patient(10)) if words == whole else b""
        return reader, writer, answer

    async def served() -> None:
        serves = server.make_reader(cast(Any, None))
        sockets = bind_sockets(0, "127.0.0.1")
        serves.add_sockets(sockets)
        before = open_files()
        opened = []
        try:
            for words in (b"", whole, half) * limited_server.MOST:
                opened.append(await asked(sockets[0].getsockname(), words))
                assert words != whole or b" 20" in opened[-1][2]
            ours = open_files() - before - len(opened)
            assert ours <= limited_server.MOST + 1
        finally:
            for _, writer, _ in opened:
                writer.close()
            serves.stop()

    asyncio.run(served())
