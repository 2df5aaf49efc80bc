"""Serves HTTP in a thread of the process that is measured."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tornado.httpserver import HTTPServer


@contextmanager
def serving(server: HTTPServer, sockets: list[socket.socket]) -> Iterator[None]:
    """Let this server answer on these sockets, which do not block."""
    ready, hand = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        server.add_sockets(sockets)
        done = asyncio.Event()
        hand.append((asyncio.get_running_loop(), done))
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
