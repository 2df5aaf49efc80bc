"""Metrics for Prometheus: base units, counters end in `_total`, no job ids as labels (each would be a time series)."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from coordinator.model import states as s
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.schema import image_fields
from coordinator.telemetry.node_load import NodeLoad

TIMES = (1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400, 604_800)  # seconds, for waits and whole jobs
ERRORS = (-0.75, -0.5, -0.25, -0.1, 0, 0.1, 0.25, 0.5, 1, 2, 5)  # shares of what was predicted
GAPS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)


REASONS = ("held", "suspended", "dependencies", "image", "pod", "resources")
"""Of waiting jobs: it did not start again; an operator suspended it; others must complete first; its pod is held back;
GPUs or cores."""


def of_this_process() -> bytes:
    """Prometheus text of a coordinator that stands by: CPU, memory and open files of its process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return bytes(generate_latest(registry))


class Metrics:
    """One registry per coordinator, so that several can live in one process (tests)."""

    def __init__(self, version: str) -> None:
        self._registry = registry = CollectorRegistry()
        self._jobs = Gauge("reshape_jobs", "Unfinished jobs by state", ["state"], registry=registry)
        self._stalled = Gauge("reshape_stalled_jobs", "Running jobs that make no step any more", registry=registry)
        self._misfits = Gauge(
            "reshape_misfit_rows", "Rows with fields that make no sense", ["table"], registry=registry
        )
        self._gpus = Gauge("reshape_gpus", "GPUs by state", ["state"], registry=registry)
        self._queue_gpus = Gauge(
            "reshape_queue_gpus",
            "GPUs by queue, in GPUs of the fastest type: held, entitled, borrowed, demand",
            ["queue", "what"],
            registry=registry,
        )
        self._queue_used = Gauge(
            "reshape_queue_used_gpu_seconds", "GPUs in use lately, decayed, by queue", ["queue"], registry=registry
        )
        self._queue_wait = Gauge(
            "reshape_queue_longest_wait_seconds", "Of its waiting jobs", ["queue"], registry=registry
        )
        self._reshapes = Counter(
            "reshape_reshapes",
            "Reshapes and moves; direction: up, down, move; outcome: done, or undone where the job goes on as before",
            ["direction", "outcome"],
            registry=registry,
        )
        self._gap = Histogram(
            "reshape_gap_seconds", "Training standing still", ["direction"], buckets=GAPS, registry=registry
        )
        self._stage = Histogram(
            "reshape_stage_seconds",
            "One stage of a reshape: decide, newcomer_ready, signal, checkpoint, exit, spawn, first_step",
            ["stage"],
            buckets=GAPS,
            registry=registry,
        )
        self._node_jobs = Gauge(
            "reshape_node_jobs", "Jobs trained on CPU by category (PC, WC, CC)", ["node", "category"], registry=registry
        )
        self._node_use = Gauge(
            "reshape_node_use_ratio", "Share of cpu or memory in use, 0 to 1", ["node", "resource"], registry=registry
        )
        self._pending = Gauge(
            "reshape_pending_jobs",
            "Waiting jobs by what they wait for: held, suspended, dependencies, image, pod, resources",
            ["reason"],
            registry=registry,
        )
        self._ended = Histogram(
            "reshape_job_completion_seconds",
            "From submission to the end; outcome: completed, failed, cancelled",
            ["outcome"],
            buckets=TIMES,
            registry=registry,
        )
        self._waited = Histogram(
            "reshape_queue_wait_seconds", "From submission to the first step", buckets=TIMES, registry=registry
        )
        self._error = Histogram(
            "reshape_gap_prediction_error_ratio",
            "(measured - predicted) / predicted gap of a reshape in place",
            buckets=ERRORS,
            registry=registry,
        )
        self._predicted = Counter(
            "reshape_predicted_times",
            "90 % intervals of predicted starts and ends by outcome: held, early, late",
            ["kind", "outcome"],
            registry=registry,
        )
        self._lost = Counter("reshape_lost_gpu_seconds", "GPUs standing still in reshapes", registry=registry)
        ProcessCollector(registry=registry)
        self._heartbeats = Counter("reshape_heartbeats", "Heartbeats handled", registry=registry)
        self._decide = Histogram("reshape_decide_seconds", "One turn of the loop", registry=registry)
        Gauge("reshape_build_info", "Version", ["version"], registry=registry).labels(version).set(1)

    def reshaped(self, direction: str, gap_s: float | None, stages_s: Mapping[str, float]) -> None:
        self._reshapes.labels(direction, "done").inc()
        if gap_s is not None:
            self._gap.labels(direction).observe(gap_s)
        for stage, seconds in stages_s.items():
            self._stage.labels(stage.replace(" ", "_")).observe(seconds)

    def undone(self, direction: str) -> None:
        """Count a reshape that was given up, after which the job goes on as before."""
        self._reshapes.labels(direction, "undone").inc()

    def gap(self, gap_s: float, gpus: int, predicted_s: float | None) -> None:
        """Count a standstill of `gpus` GPUs. `predicted_s`: None where nothing was predicted of it."""
        self._lost.inc(gap_s * gpus)
        if predicted_s:
            self._error.observe((gap_s - predicted_s) / predicted_s)

    def came(self, kind: str, outcome: str) -> None:
        """Count a predicted start or end of a job that is complete now."""
        self._predicted.labels(kind, outcome).inc()

    def started(self, waited_s: float) -> None:
        self._waited.observe(waited_s)

    def ended(self, outcome: str, took_s: float) -> None:
        self._ended.labels(outcome).observe(took_s)

    def heartbeat(self) -> None:
        self._heartbeats.inc()

    def turned(self, seconds: float) -> None:
        self._decide.observe(seconds)

    def text(
        self,
        jobs: Iterable[Any],
        gpus: Iterable[Any],
        node_loads: Mapping[str, NodeLoad],
        misfits: Mapping[str, int],
        queues: Iterable[Mapping[str, Any]] = (),
        kept: int = 0,
    ) -> bytes:
        """Prometheus text, with the states counted now and the load of the nodes at the last turn.

        `misfits`: by table, the number of rows with fields that make no sense. `queues`: as `/v1/shares` shows them.
        `kept`: idle GPUs that reservations keep.
        """
        self._set_queues(queues)
        for table, number in misfits.items():
            self._misfits.labels(table).set(number)
        self._node_jobs.clear()
        self._node_use.clear()
        for node, load in node_loads.items():
            for category in ("pc", "wc", "cc"):
                self._node_jobs.labels(node, category.upper()).set(getattr(load.jobs, category))
            self._node_use.labels(node, "cpu").set(load.cpu_use)
            self._node_use.labels(node, "memory").set(load.memory_use)
        jobs = list(jobs)
        waits = Count(_reason(job) for job in jobs if job.state == s.SUBMITTED)
        self._stalled.set(sum(bool(job.stalled or job.idle_in_stop) for job in jobs))
        for reason in REASONS:
            self._pending.labels(reason).set(waits[reason])
        gpu_states = Count(_state_of_gpu(gpu) for gpu in gpus)
        if kept:  # nobody else can have them, so that they are no idle GPUs beside jobs that wait
            gpu_states["kept"] = kept
            gpu_states[s.IDLE] -= kept
        for gauge, states in ((self._jobs, Count(_state_of_gpu(job) for job in jobs)), (self._gpus, gpu_states)):
            gauge.clear()
            for state, count in states.items():
                gauge.labels(state).set(count)
        return bytes(generate_latest(self._registry))

    def _set_queues(self, queues: Iterable[Mapping[str, Any]]) -> None:
        for gauge in (self._queue_gpus, self._queue_used, self._queue_wait):
            gauge.clear()
        for queue in queues:
            for what in ("held", "entitled", "borrowed", "demand"):
                self._queue_gpus.labels(queue["queue"], what).set(queue[what])
            self._queue_used.labels(queue["queue"]).set(3600 * queue["used_gpu_hours"])
            self._queue_wait.labels(queue["queue"]).set(queue["longest_wait_s"] or 0.0)


def _reason(job: JobRecord) -> str:
    if job.held:
        return "held"
    if job.suspended:
        return "suspended"
    if job.doc.get("depends_on") and not job.doc.get("depends_met"):
        return "dependencies"
    if image_fields.is_wanted(job.doc):
        return "image"
    return "pod" if job.doc.get("held_back") else "resources"


def _state_of_gpu(record: JobRecord | GpuRecord) -> str:
    """Return the state; of a GPU that is only not reserved for us one that alarms nobody."""
    unreserved = isinstance(record, GpuRecord) and record.holder is not None and record.used_by_others
    return "not reserved" if unreserved else record.state
