"""What a real Prometheus answers to the queries about present use, of series as cAdvisor and node exporters write them.

The series lie in its database before it starts, so that nobody has to wait until enough were scraped.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from coordinator.adapters.present_use import LaunchedPod
from coordinator.adapters.prometheus import Prometheus
from coordinator.ports import MEASURED_S
from sidecar.protocol import Usage
from tests.patience import eventually

MIB = 2.0**20
SCRAPED_S = 15
LASTED_S = 3 * MEASURED_S
PODS = [LaunchedPod("one", 2, "team", "p1", "a"), LaunchedPod("two", 1, "team", "p2", "b")]

Labels = Mapping[str, str]

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Debian's prometheus is not installed",
)


def on(node: str, pod: str, container: str, **more: str) -> Labels:
    return {"namespace": "team", "pod": pod, "container": container, "node": node, "instance": f"{node}:10250", **more}


EXPORTER = {"job": "node", "instance": "b:9100"}
RATES: list[tuple[str, Labels, float]] = [  # counters, and by how much they grow in a second
    ("container_cpu_usage_seconds_total", {"id": "/", "node": "a", "instance": "a:10250"}, 2.5),
    ("container_cpu_usage_seconds_total", on("a", "p1", "trainer"), 1.0),
    ("container_cpu_usage_seconds_total", on("a", "p1", "reshape-sidecar"), 0.125),
    ("container_cpu_usage_seconds_total", on("a", "p1", "POD"), 0.5),
    ("container_cpu_usage_seconds_total", on("a", "p1", ""), 1.125),
    ("container_cpu_usage_seconds_total", on("a", "somebody-s", "web"), 0.5),
    ("container_cpu_usage_seconds_total", {**on("b", "p2", ""), "node": ""}, 0.25),
    ("container_fs_reads_bytes_total", on("a", "p1", "trainer", device="/dev/a"), 100.0),
    ("container_fs_writes_bytes_total", on("a", "p1", "trainer", device="/dev/a"), 200.0),
    ("container_fs_reads_bytes_total", on("a", "p1", "reshape-sidecar", device="/dev/a"), 7.0),
    ("container_fs_writes_bytes_total", on("a", "p1", "reshape-sidecar", device="/dev/a"), 7.0),
    ("container_network_receive_bytes_total", on("a", "p1", "", interface="eth0"), 1000.0),
    ("container_network_receive_bytes_total", on("a", "p1", "", interface="lo"), 9999.0),
    ("container_network_transmit_bytes_total", on("a", "p1", "", interface="eth0"), 500.0),
    ("container_network_transmit_bytes_total", on("a", "p1", "", interface="lo"), 9999.0),
    ("node_cpu_seconds_total", {**EXPORTER, "cpu": "0", "mode": "user"}, 0.5),
    ("node_cpu_seconds_total", {**EXPORTER, "cpu": "1", "mode": "system"}, 0.25),
    ("node_cpu_seconds_total", {**EXPORTER, "cpu": "0", "mode": "idle"}, 0.5),
    ("node_cpu_seconds_total", {**EXPORTER, "cpu": "1", "mode": "iowait"}, 0.25),
]
VALUES: list[tuple[str, Labels, float]] = [
    ("container_memory_working_set_bytes", {"id": "/", "node": "a", "instance": "a:10250"}, 900 * MIB),
    ("container_memory_working_set_bytes", on("a", "p1", "trainer"), 300 * MIB),
    ("container_memory_working_set_bytes", on("a", "p1", "reshape-sidecar"), 20 * MIB),
    ("container_memory_working_set_bytes", {**on("b", "p2", ""), "node": ""}, 64 * MIB),
    ("node_memory_MemTotal_bytes", EXPORTER, 4096 * MIB),
    ("node_memory_MemAvailable_bytes", EXPORTER, 3000 * MIB),
    ("node_uname_info", {**EXPORTER, "nodename": "b"}, 1.0),
]


def written(until: int) -> str:
    """All samples, in the format that is read into a database."""
    lines = []
    for index, (name, labels, value) in enumerate(RATES + VALUES):
        shown = ",".join(f'{label}="{text}"' for label, text in labels.items() if text)
        for at in range(until - int(LASTED_S), until + 1, SCRAPED_S):
            now = value * (at - until + LASTED_S) if index < len(RATES) else value
            lines.append(f"{name}{{{shown}}} {now} {at}")
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, float]]:
    """The address of a Prometheus that knows these series, and the time of their last sample."""
    folder, until = tmp_path_factory.mktemp("prometheus"), int(time.time()) // 60 * 60 - 3 * 3600
    (folder / "samples").write_text(written(until))
    (folder / "prometheus.yml").write_text("{}")
    read = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples", "data"]
    subprocess.run(read, cwd=folder, check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    serve = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(serve, cwd=folder, stdout=log, stderr=log) as process:
        try:
            eventually(lambda: ready(f"http://{address}"), (folder / "log").read_text(), 30)
            yield f"http://{address}", float(until)
        finally:
            process.terminate()


def ready(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def prometheus(url: str, pods: list[LaunchedPod]) -> Prometheus:
    return Prometheus(url, lambda doc: [], lambda: pods)


def test_present_use_of_nodes_and_jobs_is_as_the_series_say(known: tuple[str, float]) -> None:
    url, at = known
    found = prometheus(url, PODS).now(at)
    cores = {node: used for node, (used, _) in found.others.items()}
    memory = {node: used / MIB for node, (_, used) in found.others.items()}
    assert cores == pytest.approx({"a": 2.5 - 1.125, "b": 0.75 - 0.25}), "own containers are not others"
    assert memory == pytest.approx({"a": 900 - 320, "b": 1096 - 64})
    one, two = found.jobs["one", 2], found.jobs["two", 1]
    assert one.cpu_cores == pytest.approx(1.0)
    assert (one.memory, one.block_io, one.network_io) == (300 * MIB, pytest.approx(300.0), pytest.approx(1500.0))
    assert two == Usage(pytest.approx(0.25), int(64 * MIB)), "what is not measured is absent, not 0"


def test_what_a_finished_task_used_is_as_the_series_say(known: tuple[str, float]) -> None:
    url, at = known

    def used(pod: str) -> dict[str, object]:
        return Prometheus(url, lambda doc: [{"name": pod, "namespace": "team", "node": "b"}], list).used(
            {}, at - 60, at
        )

    one = used("p1")
    assert (one["used_cores"], one["used_memory"]) == (pytest.approx(1.0), 300 * MIB)
    assert (one["used_block_io"], one["used_network_io"]) == (pytest.approx(300.0), pytest.approx(1500.0))
    two = used("p2")
    assert two["used_from"] == "prometheus" and not {"used_block_io", "used_network_io"} & two.keys()


def test_a_gang_of_which_a_pod_is_not_known_is_not_known(known: tuple[str, float]) -> None:
    url, at = known
    gang = [PODS[0], LaunchedPod("one", 2, "team", "p1-1", "b"), PODS[1]]
    found = prometheus(url, gang).now(at)
    assert set(found.jobs) == {("two", 1)}
    assert found.others["a"][0] == pytest.approx(1.375)


def test_without_jobs_all_is_of_others_and_long_afterwards_nothing_is_known(known: tuple[str, float]) -> None:
    url, at = known
    alone = prometheus(url, [])
    assert {node: cores for node, (cores, _) in alone.now(at).others.items()} == pytest.approx({"a": 2.5, "b": 0.75})
    assert (alone.now(at + 3600.0).others, prometheus(url, PODS).now(at + 3600.0).jobs) == ({}, {})
