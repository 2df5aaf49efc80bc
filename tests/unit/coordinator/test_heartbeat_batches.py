"""Reports in the store: 1,000 jobs a document, written only when something is new, known again after a restart."""

from __future__ import annotations

import pytest

from coordinator.errors import Transient
from coordinator.model.records import JobRecord
from coordinator.ports import Doc
from coordinator.stores.cache import Cache
from coordinator.telemetry.heartbeats import BATCH, TABLE, HeartbeatBatches
from coordinator.telemetry.reports import Reports
from sidecar.protocol import GpuReading, Heartbeat, Progress, ShimStatus
from tests.fakes.store import MemoryStore
from tests.fakes.world import FakeClock


class Process:
    """The parts of a coordinator process that keep reports; a second one on the same store is its restart."""

    def __init__(self, store: MemoryStore) -> None:
        self.clock = FakeClock()
        self.cache, self.reports = Cache(store), Reports(self.clock, 5.0)
        self.cache.refresh()
        self.batches = HeartbeatBatches(store, self.reports, self.cache, self.clock)
        self.seq = 0

    def hear(self, job: str, iterations: int) -> None:
        self.seq += 1
        beat = Heartbeat(
            job_id=job, launch=1, seq=self.seq, url="u", sidecar_pid=1, shim=ShimStatus(),
            progress=Progress(iterations=iterations), gpus=[GpuReading(f"gpu-of-{job}", utilisation=0.5)],
        )  # fmt: skip
        self.reports.keep_heartbeat(JobRecord({"_id": job, "job_id": job, "launch": 1}), beat)


def insert(store: MemoryStore, *jobs: str) -> None:
    for job in jobs:
        store.insert("jobs", {"_id": job, "job_id": job, "uid": "u", "closed": False, "launch": 1, "state": "running"})


def written(store: MemoryStore) -> dict[str, list[Doc]]:
    return {batch["_id"]: batch["rows"] for batch in store.list(TABLE)}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_a_thousand_jobs_are_one_document_and_the_next_one_begins_another(store: MemoryStore) -> None:
    jobs = [f"j{n:04}" for n in range(BATCH + 1)]
    insert(store, *jobs)
    process, before = Process(store), store.writes
    for job in jobs:
        process.hear(job, 1)
    process.batches.flush()
    assert store.writes - before == 2
    assert {name: len(rows) for name, rows in written(store).items()} == {"batch-0": BATCH, "batch-1": 1}


def test_where_nothing_is_new_nothing_is_written_although_time_passes(store: MemoryStore) -> None:
    insert(store, "a")
    process = Process(store)
    process.hear("a", 1)
    process.batches.flush()
    before = store.writes
    process.clock.time += 5
    process.hear("a", 1)
    process.batches.flush()
    assert store.writes == before
    process.hear("a", 2)
    process.batches.flush()
    assert store.writes == before + 1
    assert written(store)["batch-0"][0]["iters_done"] == 2


def test_a_job_that_left_the_books_leaves_the_store_too(store: MemoryStore) -> None:
    insert(store, "a", "b")
    process = Process(store)
    process.hear("a", 1)
    process.hear("b", 1)
    process.batches.flush()
    job = process.cache.job("a")
    assert job is not None
    process.cache.write_job(job, {"closed": True}, "close")
    process.batches.flush()
    assert [row["job_id"] for row in written(store)["batch-0"]] == ["b"]
    assert process.batches.gpu_rows().keys() == {"gpu-of-b"}


def test_what_could_not_be_written_is_written_the_next_time(store: MemoryStore) -> None:
    insert(store, "a")
    process = Process(store)
    process.hear("a", 7)
    store.hiccups.append("before")
    with pytest.raises(Transient):
        process.batches.flush()
    process.batches.flush()
    assert written(store)["batch-0"][0]["iters_done"] == 7


def test_after_a_restart_the_last_report_stays_known_until_the_sidecar_reports_again(store: MemoryStore) -> None:
    insert(store, "a", "b")
    first = Process(store)
    first.hear("a", 7)
    first.hear("b", 3)
    first.batches.flush()
    second, before = Process(store), store.writes
    assert second.batches.stored["a"]["iters_done"] == 7
    second.batches.flush()
    assert store.writes == before, "nobody has reported yet: there is nothing new"
    assert second.batches.stored["a"]["iters_done"] == 7
    second.hear("b", 4)
    second.batches.flush()
    assert {j: row["iters_done"] for j, row in second.batches.stored.items()} == {"a": 7, "b": 4}
    assert second.batches.gpu_rows()["gpu-of-a"]["utilisation"] == 0.5


def test_a_document_that_a_larger_crowd_needed_is_emptied_after_a_restart(store: MemoryStore) -> None:
    insert(store, "a")
    old = [{"job_id": "a", "iters_done": 1, "gpus": []}]
    store.put(TABLE, {"_id": "batch-0", "rows": [{"job_id": "gone", "iters_done": 9, "gpus": []}]})
    store.put(TABLE, {"_id": "batch-1", "rows": old})
    process = Process(store)
    process.hear("a", 2)
    process.batches.flush()
    assert {name: [row["iters_done"] for row in rows] for name, rows in written(store).items()} == {
        "batch-0": [2],
        "batch-1": [],
    }
    assert Process(store).batches.stored["a"]["iters_done"] == 2
