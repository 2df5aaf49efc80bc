"""`reshape agent`: the node agent of one node, until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.errors import Rejected
from reshape.services import process_log
from sidecar.resources.agent import AgentError, NodeAgent
from sidecar.startup import log_format


def run(
    *, node: str, coordinator: str, keys: Path, emulated: Path | None, heartbeat: float, metrics_port: int | None
) -> int:
    """Serve until a signal. Raises `Rejected` with a sentence for wrong settings."""
    process_log.begin()
    log_format.identify(node=node)
    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    try:
        key = (keys / "agent.key").read_text().strip().encode()
        agent = NodeAgent(node, coordinator, key, heartbeat, emulated)
    except OSError as error:
        raise Rejected(
            f"The key {error.filename} cannot be read: {error.strerror}; `reshape setup` makes it."
        ) from None
    except AgentError as error:
        raise Rejected(str(error)) from None
    with serving_metrics(metrics_port):
        agent.run(end)
    return 0


@contextmanager
def serving_metrics(port: int | None) -> Iterator[None]:
    """Serve CPU, memory and open files of this process at `/metrics`, if a port is given. `Rejected` if it is taken."""
    if port is None:
        yield
        return
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    try:
        server, serving = start_http_server(port, registry=registry)
    except OSError as error:
        raise Rejected(
            f"Cannot serve metrics on port {port}: {error.strerror}; choose another --metrics-port."
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
