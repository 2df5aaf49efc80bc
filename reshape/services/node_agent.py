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
from sidecar.resources.seats import Seats
from sidecar.startup import log_format

PERMIT_PORT = 8480  # where the coordinator says which GPUs a pod may open


def run(
    *,
    node: str,
    coordinator: str,
    keys: Path,
    emulated: Path | None,
    heartbeat: float,
    metrics_port: int | None,
    pod_resources: Path | None,
    seats: str | None,
    machine: Path | None,
    pod_ip: str | None,
) -> int:
    """Serve until a signal. Raises `Rejected` with a sentence for wrong settings."""
    process_log.begin()
    log_format.identify(node=node)
    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    key = _read_key(keys / "agent.key")
    try:
        offered = _seats_of_node(seats, machine, pod_ip, key)
        agent = NodeAgent(
            node, coordinator, key, heartbeat, emulated, pod_resources, offered.address if offered else ""
        )
    except AgentError as error:
        raise Rejected(str(error)) from None
    with serving_metrics(metrics_port), _seat_plugin(offered):
        agent.run(end)
    return 0


def _read_key(path: Path) -> bytes:
    try:
        return path.read_text().strip().encode()
    except OSError as error:
        raise Rejected(f"The key {path} cannot be read: {error.strerror}; `reshape setup` makes it.") from None


def _seats_of_node(kind: str | None, machine: Path | None, pod_ip: str | None, key: bytes) -> Seats | None:
    """Return the seats that this node offers; None without. `Rejected` where a setting is missing."""
    if kind is None:
        return None
    if machine is None or pod_ip is None:
        raise Rejected("Seats need --machine and --pod-ip, too: see manifests/components/seats.")
    try:
        return Seats(machine, kind == "cdi", key, pod_ip, PERMIT_PORT)
    except OSError as error:
        raise Rejected(f"Cannot listen on port {PERMIT_PORT}: {error.strerror}.") from None


@contextmanager
def _seat_plugin(seats: Seats | None) -> Iterator[None]:
    if seats is None:
        yield
        return
    seats.start()
    try:
        yield
    finally:
        seats.stop()


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
