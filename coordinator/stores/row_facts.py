"""Tells facts of rows and records of `jobs` and `gpus` that the cache compares. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.tables import GpuRow, JobRow
from coordinator.ports import Doc

R = TypeVar("R", JobRecord, GpuRecord)


def owners_of(jobs: Iterable[JobRecord]) -> dict[str, JobRecord]:
    """The job that each GPU belongs to, by the jobs' own documents."""
    return {gpu_id: job for job in jobs for gpu_id in job.gpu_ids}


def is_by_hand(doc: Doc) -> bool:
    """True if its `closed` was written by hand: intake has not accepted it."""
    return doc.get("uid") in (None, "")


def precedence(doc: Doc) -> tuple[bool, int, str]:
    """Of rows that have one name, the first counts if none did before: one without problems, the newest version."""
    return bool(doc.get("problems")), -version_of(doc), str(doc["_id"])


def submitted_last(job: JobRecord) -> tuple[bool, bool, float]:
    waits = not job.uid and not job.doc.get("problems")
    return waits, job.accepted, job.submit_ts


def users_of(gpu: GpuRecord | None) -> set[str]:
    """The jobs that a GPU is promised to or held by."""
    return set() if gpu is None else {job_id for job_id in (gpu.job, gpu.held_by) if job_id is not None}


def newer(old: R | None, read: R) -> R:
    """The newer of two records, since a write may have overtaken the listing."""
    return old if old is not None and version_of(old.doc) > version_of(read.doc) else read


def version_of(doc: JobRow | GpuRow) -> int:
    version = doc.get("version")
    return version if isinstance(version, int) else 0


def row_key(table: str, key: Any) -> tuple[str, Any]:
    """A hashable key of a row: a database may hold an `_id` that is not hashable."""
    return table, key if isinstance(key, str | int) else repr(key)
