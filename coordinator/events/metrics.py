"""Metrics for Prometheus: base units, counters end in `_total`, no job ids as labels (each would be a time series)."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from coordinator.telemetry.node_load import NodeLoad

GAPS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)


class Metrics:
    """One registry per coordinator, so that several can live in one process (tests)."""

    def __init__(self, version: str) -> None:
        self._registry = registry = CollectorRegistry()
        self._jobs = Gauge("reshape_jobs", "Unfinished jobs by state", ["state"], registry=registry)
        self._misfits = Gauge(
            "reshape_misfit_rows", "Rows with fields that make no sense", ["table"], registry=registry
        )
        self._gpus = Gauge("reshape_gpus", "GPUs by state", ["state"], registry=registry)
        self._reshapes = Counter("reshape_reshapes", "Reshapes done", ["direction"], registry=registry)
        self._gap = Histogram(
            "reshape_gap_seconds", "Training standing still", ["direction"], buckets=GAPS, registry=registry
        )
        self._stage = Histogram(
            "reshape_stage_seconds", "One stage of a reshape", ["stage"], buckets=GAPS, registry=registry
        )
        self._node_jobs = Gauge(
            "reshape_node_jobs", "Jobs trained on CPU by category", ["node", "category"], registry=registry
        )
        self._node_use = Gauge("reshape_node_use_ratio", "Share in use", ["node", "resource"], registry=registry)
        self._heartbeats = Counter("reshape_heartbeats", "Heartbeats handled", registry=registry)
        self._decide = Histogram("reshape_decide_seconds", "One turn of the loop", registry=registry)
        Gauge("reshape_build_info", "Version", ["version"], registry=registry).labels(version).set(1)

    def reshaped(self, direction: str, gap_s: float | None, stages_s: Mapping[str, float]) -> None:
        self._reshapes.labels(direction).inc()
        if gap_s is not None:
            self._gap.labels(direction).observe(gap_s)
        for stage, seconds in stages_s.items():
            self._stage.labels(stage.replace(" ", "_")).observe(seconds)

    def heartbeat(self) -> None:
        self._heartbeats.inc()

    def turned(self, seconds: float) -> None:
        self._decide.observe(seconds)

    def text(
        self, jobs: Iterable[Any], gpus: Iterable[Any], node_loads: Mapping[str, NodeLoad], misfits: Mapping[str, int]
    ) -> bytes:
        """Prometheus text, with the states counted now and the load of the nodes at the last turn.

        `misfits`: by table, the number of rows with fields that make no sense.
        """
        for table, number in misfits.items():
            self._misfits.labels(table).set(number)
        self._node_jobs.clear()
        self._node_use.clear()
        for node, load in node_loads.items():
            for category in ("pc", "wc", "cc"):
                self._node_jobs.labels(node, category.upper()).set(getattr(load.jobs, category))
            self._node_use.labels(node, "cpu").set(load.cpu_use)
            self._node_use.labels(node, "memory").set(load.memory_use)
        for gauge, records in ((self._jobs, jobs), (self._gpus, gpus)):
            gauge.clear()
            for state, count in Count(r.state for r in records).items():
                gauge.labels(state).set(count)
        return bytes(generate_latest(self._registry))
