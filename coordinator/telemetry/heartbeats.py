"""Writes the newest heartbeats to the store: one document for up to 1,000 jobs, replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coordinator.model.records import JobRecord
from coordinator.model.tables import ReportRow, sound
from coordinator.ports import Clock, Doc, Store
from coordinator.stores.cache import Cache
from coordinator.telemetry.reports import Reports
from sidecar.protocol import Heartbeat

BATCH = 1_000
TABLE = "heartbeats"


class HeartbeatBatches:
    """`flush` is called by one thread. After a restart the stored rows are shown until sidecars report again."""

    def __init__(
        self, store: Store, reports: Reports, cache: Cache, clock: Clock, give_way: Callable[[], None] = lambda: None
    ) -> None:
        """`give_way` is called after each row."""
        self._store, self._reports, self._cache, self._clock = store, reports, cache, clock
        self._give_way = give_way
        batches = {str(batch["_id"]): sound(batch.get("rows"), ReportRow) for batch in store.list(TABLE)}
        self._written: list[list[Doc]] = [batches.get(f"batch-{n}", []) for n in range(len(batches))]
        self.stored: dict[str, Doc] = {str(row["job_id"]): row for rows in self._written for row in rows}

    def flush(self) -> None:
        """One round trip per 1,000 jobs that report; none where nothing is new.

        The row of a job that has not reported to this process yet stays.
        """
        jobs, wall = self._cache.jobs(), self._clock.wall()
        rows = list[Doc]()
        for job in jobs.values():
            beat = self._reports.newest_of_job(job)
            if row := dict(self.row(job)) if beat is None else heartbeat_row(job, beat, wall):
                rows.append(row)
            self._give_way()
        batches = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
        for number in range(max(len(batches), len(self._written))):
            batch = batches[number] if number < len(batches) else []
            before = self._written[number] if number < len(self._written) else None
            if before is None or _differ(batch, before):
                self._store.put(TABLE, {"_id": f"batch-{number}", "rows": batch})
        self._written = batches
        self.stored = {str(row["job_id"]): row for row in rows}

    def row(self, job: JobRecord) -> Mapping[str, Any]:
        """The row last written of this job; empty if an earlier job of the same name wrote it."""
        row = self.stored.get(job.id, {})
        return row if row.get("uid", job.uid) == job.uid else {}

    def gpu_rows(self) -> Mapping[str, Doc]:
        return {g["gpu_id"]: g for row in self.stored.values() for g in row.get("gpus", ())}


def _differ(rows: list[Doc], before: list[Doc]) -> bool:
    """Whether they say anything else but the time."""
    pairs = zip(rows, before, strict=False)
    return len(rows) != len(before) or any({**row, "at": 0} != {**old, "at": 0} for row, old in pairs)


def heartbeat_row(job: JobRecord, beat: Heartbeat, wall: float) -> Doc:
    """The fields of a heartbeat that are stored."""
    progress = beat.progress
    return {
        "job_id": job.raw_id,
        "uid": job.uid,
        "at": wall,
        "iters_done": progress.iterations,
        "epochs_done": progress.epochs,
        "value": progress.value,
        "value_name": progress.value_name,
        "seconds_per_iteration": progress.seconds_per_iteration,
        "cpu_cores": beat.usage.cpu_cores,
        "memory": beat.usage.memory,
        "gpus": [
            {
                "gpu_id": g.gpu_id,
                "utilisation": g.utilisation,
                "memory_used": g.memory_used,
                "memory_total": g.memory_total,
                "memory_own": g.memory_own,
                "memory_others": g.memory_others,
                "healthy": g.healthy,
            }
            for g in beat.gpus
        ],
    }
