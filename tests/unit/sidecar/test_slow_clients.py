"""A request of which only half is sent is held for no longer than an idle connection, wherever we listen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from launcher.admission import webhook
from sidecar.endpoints import server
from tests.patience import patient

SERVERS: list[tuple[ModuleType, Callable[[], HTTPServer]]] = [
    (server, lambda: server.make_reader(cast(Any, None))),
    (webhook, lambda: webhook.make_server(cast(Any, None), None, lambda: True, lambda: b"")),
]


@pytest.mark.parametrize(("module", "make"), SERVERS, ids=["sidecar", "webhook"])
def test_half_of_a_header_does_not_hold_a_connection(
    module: ModuleType, make: Callable[[], HTTPServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module.IDLE_S <= 60
    monkeypatch.setattr(module, "IDLE_S", 0.2)

    async def half() -> bytes:
        serves, sockets = make(), bind_sockets(0, "127.0.0.1")
        serves.add_sockets(sockets)
        try:
            reader, writer = await asyncio.open_connection(*sockets[0].getsockname())
            writer.write(b"POST /v1/start HTTP/1.1\r\nContent-Le")
            return await asyncio.wait_for(reader.read(), patient(10))
        finally:
            serves.stop()

    assert asyncio.run(half()) == b""
