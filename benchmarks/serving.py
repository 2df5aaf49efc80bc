"""Serves HTTP in a thread of the process that is measured."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext

from tornado.httpserver import HTTPServer

Beside = Callable[[], AbstractAsyncContextManager[object]]


@contextmanager
def serving(server: HTTPServer, sockets: list[socket.socket], beside: Beside = nullcontext) -> Iterator[None]:
    """Let this server answer on these sockets, which do not block; `beside` is entered in its thread."""
    ready, hand = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        server.add_sockets(sockets)
        done = asyncio.Event()
        hand.append((asyncio.get_running_loop(), done))
        async with beside():
            ready.set()
            await done.wait()
        server.stop()
        await server.close_all_connections()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="http")
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        loop, done = hand[0]
        loop.call_soon_threadsafe(done.set)
        thread.join()
