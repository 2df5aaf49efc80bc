"""Puts what a Prometheus measured of nodes and running jobs in place of what is known of them otherwise.

Promises that nobody waits for Prometheus: a thread asks it, and what it has not answered lately does not count; then
the pods' own reports do, and the requests of others. What it measured of a job counts only while nothing has changed
about its training for as long as it takes the mean over: no restart, no other limit, no other pods. Asked by
`observation_profiler.py`, which has the thread; read by `ingest.py` and by views. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal

import msgspec

from coordinator.model.records import JobRecord
from coordinator.ports import MEASURED_S, Clock, Measurements
from coordinator.telemetry.measured.other_load import FRESH_S, OtherLoad
from sidecar.protocol import Heartbeat, Usage

PERIOD_S = 15.0  # between two rounds of queries
FIELDS = ("cpu_cores", "memory", "block_io", "network_io")

UsedFrom = Literal["heartbeats", "prometheus"]


class MeasuredUse:
    """`measurements`: None where no Prometheus is configured."""

    def __init__(self, clock: Clock, measurements: Measurements | None, others: OtherLoad) -> None:
        self._clock, self._measurements, self._others = clock, measurements, others
        self._lock = threading.Lock()
        self._due = clock.now()
        self._at, self._jobs = -FRESH_S, dict[tuple[str, int], Usage]()  # by uid and launch, as they were measured
        self._steady: dict[str, tuple[object, float]] = {}  # by uid: what trains, and since when unchanged

    def look(self) -> bool:
        """Ask Prometheus if that is due; True if it was. `Transient` if it does not answer."""
        now = self._clock.now()
        if self._measurements is None or now < self._due:
            return False
        self._due = now + PERIOD_S
        found = self._measurements.now(self._clock.wall())
        for node, (cores, memory) in found.others.items():
            self._others.add_measurement(node, cores, memory, "prometheus")
        with self._lock:
            self._at, self._jobs = now, dict(found.jobs)
        return True

    def heard(self, job: JobRecord, beat: Heartbeat) -> None:
        """Note what trains now; given the report of all pods together."""
        if self._measurements is None:
            return
        shim = beat.shim
        trains = beat.launch, shim.generation, shim.trainer, shim.trainer_pid, job.members, beat.usage.limit
        with self._lock:
            if self._steady.get(job.uid, (None, 0.0))[0] != trains:
                self._steady[job.uid] = trains, self._clock.now()

    def told(self, job: JobRecord, beat: Heartbeat) -> tuple[Heartbeat, UsedFrom]:
        """The report with the use that counts, and where that is from."""
        if self._measurements is None:
            return beat, "heartbeats"
        with self._lock:
            used, (_, since) = self._jobs.get((job.uid, beat.launch)), self._steady.get(job.uid, (None, self._at))
            fresh = self._clock.now() - self._at <= FRESH_S and self._at - since >= MEASURED_S
        if used is None or not fresh or beat.shim.trainer != "running":
            return beat, "heartbeats"
        known: Mapping[str, float] = {f: value for f in FIELDS if (value := getattr(used, f)) is not None}
        usage = msgspec.structs.replace(beat.usage, **known)
        return msgspec.structs.replace(beat, usage=usage), "prometheus"

    def forget_job(self, job: JobRecord) -> None:
        with self._lock:
            self._steady.pop(job.uid, None)
