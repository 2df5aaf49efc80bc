"""Runs a web server of the standard library in a thread, as fakes of services do. Not a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer

LOOK_S = 0.02  # between two looks of a server whether it is to end


@contextmanager
def serving_in_thread(server: BaseServer) -> Iterator[None]:
    """It serves until the end, and is closed then."""
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_S,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
