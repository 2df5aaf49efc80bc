"""A user's own pymongo writes Tables II and III of the SideCar paper and reads them back unchanged, and so do we.

They are shown in `docs/reference/job.md`; their fields in `algorithms.md` 1.2.
"""

from __future__ import annotations

from typing import Any

import pymongo

from coordinator.stores.mongo import MongoStore

GPUS: list[dict[str, Any]] = [
    {"_id": 0, "gpu_id": 0, "state": "in use", "job_id": 0, "worker_id": 0},
    {"_id": 1, "gpu_id": 1, "state": "in use", "job_id": 0, "worker_id": 1},
    {"_id": 2, "gpu_id": 2, "state": "in use", "job_id": 1, "worker_id": 0},
    {"_id": 3, "gpu_id": 3, "state": "reserved", "job_id": 2, "worker_id": None},
]


def _job(job: int, state: str, gpu_ids: list[int] | None, optional: list[int]) -> dict[str, Any]:
    row = {"_id": job, "job_id": job, "state": state, "num_gpus": len(gpu_ids or []), "gpu_ids": gpu_ids}
    return {**row, "job_type": job, "optional_num_gpus": optional}


JOBS = [
    _job(0, "running", [0, 1], [1, 2, 4]),
    _job(1, "adjusting", [2], [1, 2, 4]),
    _job(2, "initialized", [3], [1, 2, 4]),
    _job(3, "submitted", None, [1, 2, 4, 8]),
    _job(4, "completed", None, [1, 2, 4, 8]),
]


def test_the_rows_of_tables_ii_and_iii_come_back_unchanged(nx_url: str) -> None:
    with pymongo.MongoClient[dict[str, Any]](nx_url) as client:
        database = client.get_default_database()
        database.gpus.insert_many([dict(row) for row in GPUS])
        database.jobs.insert_many([dict(row) for row in JOBS])
        assert list(database.gpus.find().sort("gpu_id")) == GPUS
        assert list(database.jobs.find().sort("job_id")) == JOBS
        assert database.jobs.find_one({"state": "submitted"}) == JOBS[3]
    store = MongoStore(nx_url)
    assert store.list("gpus") == GPUS
    assert store.list("jobs") == JOBS
    assert store.list("jobs", {"gpu_ids": None}) == JOBS[3:]
    assert store.get("gpus", 3) == GPUS[3]
    store.close()


def test_a_row_without_our_fields_can_be_changed_and_keeps_its_own(nx_url: str) -> None:
    with pymongo.MongoClient[dict[str, Any]](nx_url) as client:
        jobs = client.get_default_database().jobs
        jobs.insert_one({**JOBS[3], "comment": "mine", "dataset": "/shared/digits"})
        store = MongoStore(nx_url)
        store.update("jobs", 3, {"state": "submitted", "version": None}, {"state": "initializing"})
        store.close()
        expected = {**JOBS[3], "comment": "mine", "dataset": "/shared/digits", "state": "initializing", "version": 1}
        assert jobs.find_one({"_id": 3}) == expected


def test_a_row_whose_key_the_driver_made_can_be_read_and_changed(nx_url: str) -> None:
    with pymongo.MongoClient[dict[str, Any]](nx_url) as client:
        key = client.get_default_database().jobs.insert_one({"state": "submitted"}).inserted_id
    store = MongoStore(nx_url)
    assert store.get("jobs", key) == {"_id": key, "state": "submitted"}
    assert store.update("jobs", key, {"version": None}, {"state": "failed"})["version"] == 1
    assert [doc["_id"] for doc in store.list("jobs")] == [key]
    store.close()
