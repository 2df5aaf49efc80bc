"""The `reshape` command, the Python client and `reshape up`, which runs all services in one process.

`from reshape import Client`, or `AsyncClient`. Nothing is imported before it is asked for, so that commands start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshape.client.async_client import AsyncClient as AsyncClient
    from reshape.client.client import Client as Client

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import a client when it is asked for."""
    if name == "Client":
        from reshape.client.client import Client

        return Client
    if name == "AsyncClient":
        from reshape.client.async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module 'reshape' has no attribute {name!r}")
