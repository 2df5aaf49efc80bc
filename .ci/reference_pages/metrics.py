"""The page of metrics, from the registries that `/metrics` is made of."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from coordinator.events.metrics import Metrics
from launcher.cluster.metrics import LauncherMetrics
from reference_pages.markdown import table
from sidecar.endpoints import metrics as of_sidecar
from sidecar.service import Sidecar

HEAD = """\
# Metrics
In Prometheus' text format, without a login. Written by `make reference` from `coordinator/events/metrics.py`,
`launcher/cluster/metrics.py` and `sidecar/endpoints/metrics.py`: change them there. How to scrape them, the alerts and the
Grafana dashboard: [monitoring.md](../how-to/monitoring.md).

A histogram also has `_bucket`, `_sum` and `_count`. No metric has a job's name as a label: each would be a time series of its
own. Of one job ask its sidecar, or `GET /v1/jobs/ID`. A value that is not known has no sample: 0 would be wrong. Every process,
the node agent's too, adds `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds` and so on of itself.
"""


def page() -> str:
    """Return the text of docs/reference/metrics.md."""
    columns = ("Metric", "Type", "Labels", "Meaning")
    return "\n".join(
        [
            HEAD,
            "## Of the coordinator\n`GET /metrics` of its port.\n",
            table(columns, _of_registry(Metrics("")._registry)),
            "## Of the launcher\n`GET /metrics` of the webhook's port, by HTTPS.\n",
            table(columns, _of_registry(LauncherMetrics(lambda: True, lambda: 0)._registry)),
            "## Of a sidecar\n`GET /metrics` of port 8477 of a pod, or of the address in the launch's folder.\n",
            table(columns, _of_sidecar()),
        ]
    )


def _of_registry(registry: CollectorRegistry) -> Iterator[tuple[str, ...]]:
    for one in dict.fromkeys(registry._names_to_collectors.values()):
        if isinstance(one, MetricWrapperBase):
            yield _row(one._name, one._type, one._labelnames, one._documentation)


def _of_sidecar() -> Iterator[tuple[str, ...]]:
    """Only names and texts are asked for, so it needs no sidecar that runs."""
    anything = SimpleNamespace(iterations=0, seconds_per_iteration=None, cpu_cores=None, memory=None, limit=None)
    meter = SimpleNamespace(moved=(None, None))
    sample = SimpleNamespace(usage=anything, gpus=())
    reader = SimpleNamespace(progress=anything)
    sidecar: Any = SimpleNamespace(reader=reader, sample=sample, sent=0, failed=0, meter=meter)
    for one in of_sidecar._Collector(cast(Sidecar, sidecar)).collect():
        yield _row(one.name, one.type, getattr(one, "_labelnames", ()), one.documentation)


def _row(name: str, kind: str, labels: Any, text: str) -> tuple[str, ...]:
    total = "_total" if kind == "counter" else ""
    return f"`{name}{total}`", kind, ", ".join(f"`{label}`" for label in labels) or "-", text
