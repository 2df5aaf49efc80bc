"""A real Prometheus beside the API server of the test bed, and a node exporter on each of its nodes.

It scrapes both kubelets' cAdvisor as an administrator and both exporters, every second. Coordinators of the bed know
its address at all times; only while `watching` runs it answers there. Called by `test_profiler.py`.
"""

from __future__ import annotations

import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster import bed_network as network
from tests.cluster.bed import Bed
from tests.cluster.bed_kubectl import until
from tests.cluster.bed_network import CONTROL_IP, NODES, node_ip
from tests.cluster.bed_processes import BedError

ADDRESS = f"http://{CONTROL_IP}:9090"
EXPORTER_PORT, KUBELET_PORT = 9100, 10250


@contextmanager
def watching(bed: Bed) -> Iterator[None]:
    """While this runs all four targets are scraped."""
    folder = bed.folder / "prometheus"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "prometheus.yml").write_text(json.dumps(_configuration(bed)))  # YAML reads JSON
    parts = {f"node-exporter-{node}": _exporter(node) for node in NODES}
    parts["prometheus"] = network.inside(network.CONTROL, [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={CONTROL_IP}:9090",
    ])  # fmt: skip
    try:
        for name, command in parts.items():
            bed.processes.start(name, command)
        until("Prometheus scrapes all", lambda: len(ask("up == 1")) == 2 * len(NODES), 30, lambda: _check(bed, parts))
        yield
    finally:
        bed.processes.stop(list(parts))


def ask(query: str) -> list[dict[str, Any]]:
    """The result of an instant query."""
    url = f"{ADDRESS}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return list(json.load(answer)["data"]["result"])
    except OSError as error:
        raise BedError(f"Prometheus does not answer: {error}") from None


def _check(bed: Bed, parts: dict[str, list[str]]) -> None:
    for name in parts:
        bed.processes.check(name)


def _exporter(node: str) -> list[str]:
    """Each under its node's own host name, which is how it is told from others; the load is that of the machine."""
    wanted = [f"--collector.{name}" for name in ("disable-defaults", "loadavg", "uname")]
    address = f"--web.listen-address={node_ip(node)}:{EXPORTER_PORT}"
    named = ["unshare", "--uts", "sh", "-c", f'hostname {node} && exec "$@"', "sh"]
    return network.inside(network.namespace(node), [*named, "prometheus-node-exporter", *wanted, address])


def _configuration(bed: Bed) -> dict[str, Any]:
    token = json.loads(bed.kubeconfig.read_text())["users"][0]["user"]["token"]
    kubelets = {
        "job_name": "kubelet", "scheme": "https", "metrics_path": "/metrics/cadvisor",
        "authorization": {"credentials": token}, "tls_config": {"ca_file": str(bed.authority.certificate)},
        "static_configs": [{"targets": [f"{node_ip(node)}:{KUBELET_PORT}" for node in NODES]}],
    }  # fmt: skip
    exporters = {
        "job_name": "node",
        "static_configs": [{"targets": [f"{node_ip(node)}:{EXPORTER_PORT}" for node in NODES]}],
    }
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [kubelets, exporters]}
