"""Renders the sidecar's metrics for Prometheus. Called by the `/metrics` endpoint; stateless."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sidecar.service import Sidecar

CONTENT_TYPE = CONTENT_TYPE_LATEST


def render(sidecar: Sidecar) -> bytes:
    """Return the metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(sidecar))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar

    def collect(self) -> Iterator[Metric]:
        s = self._sidecar
        progress, usage = s.reader.progress, s.sample.usage
        yield CounterMetricFamily("reshape_iterations", "Global steps done since the job began", progress.iterations)
        yield _gauge("reshape_seconds_per_iteration", "Mean of the last steps", progress.seconds_per_iteration)
        yield _gauge("reshape_cpu_cores", "CPU cores used by the trainer", usage.cpu_cores)
        yield _gauge("reshape_memory_bytes", "Resident memory of the trainer", usage.memory)
        disk, network = s.meter.moved
        yield _counter("reshape_block_io_bytes", "What it read from and wrote to disks", disk)
        yield _counter("reshape_network_io_bytes", "What its pod sent and received", network)
        yield _gauge("reshape_cpu_limit_cores", "CPU cores that it may use at most", usage.limit)
        yield CounterMetricFamily("reshape_heartbeats_sent", "Heartbeats sent to the coordinator", s.sent)
        yield CounterMetricFamily("reshape_heartbeats_failed", "Heartbeats without a trusted answer", s.failed)
        yield from self._gpus()

    def _gpus(self) -> Iterator[Metric]:
        busy = GaugeMetricFamily("reshape_gpu_utilisation_ratio", "Share of time busy, 0 to 1", labels=["gpu_id"])
        memory = {
            "memory_used": ("reshape_gpu_memory_bytes", "Memory in use by whomever"),
            "memory_own": ("reshape_gpu_memory_own_bytes", "Memory that the trainer's processes hold, where known"),
            "memory_others": ("reshape_gpu_memory_others_bytes", "Memory that anybody else holds, where known"),
        }
        held = {field: GaugeMetricFamily(*named, labels=["gpu_id"]) for field, named in memory.items()}
        for reading in self._sidecar.sample.gpus:
            if reading.utilisation is not None:
                busy.add_metric([reading.gpu_id], reading.utilisation)
            for field, metric in held.items():
                if (size := getattr(reading, field)) is not None:
                    metric.add_metric([reading.gpu_id], size)
        yield busy
        yield from held.values()


def _counter(name: str, what: str, value: float | None) -> Metric:
    """Return a counter, without a sample if the value is unknown."""
    return CounterMetricFamily(name, what) if value is None else CounterMetricFamily(name, what, value)


def _gauge(name: str, what: str, value: float | None) -> Metric:
    """Return a gauge, without a sample if the value is unknown: 0 would be wrong."""
    return GaugeMetricFamily(name, what) if value is None else GaugeMetricFamily(name, what, value)
