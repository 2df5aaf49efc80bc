"""`reshape agent` as a process of a node."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from coordinator.errors import Rejected
from reshape.services.node_agent import serving_metrics


def test_it_serves_metrics_of_its_own_process_where_a_port_is_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Rejected, match=f"port {port}.*choose another --metrics-port"), serving_metrics(port):
            pass
    with serving_metrics(port), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"process_cpu_seconds_total " in answer.read()
    with serving_metrics(None), pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
