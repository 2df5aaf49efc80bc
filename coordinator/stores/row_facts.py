"""Holds rows of `jobs` and `gpus` as they were read last, and tells facts of them that the cache compares. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from coordinator.model import document_validation
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.tables import GpuRow, JobRow
from coordinator.ports import Doc

R = TypeVar("R", JobRecord, GpuRecord)


class ReadRows:
    """Each row as it lay in the store last, with what validation made of it: it is validated again once it differs."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, Any], tuple[Doc, document_validation.ValidatedDocument]] = {}

    def __contains__(self, row: tuple[str, Any]) -> bool:
        return row_key(*row) in self._rows

    def validated(self, table: str, doc: Doc, owner: JobRecord | None = None) -> document_validation.ValidatedDocument:
        """Validate a row. `owner`: the job whose document says that it has this GPU."""
        key = row_key(table, doc["_id"])
        before = self._rows.get(key)
        if before is not None and before[0] == doc:
            return before[1]
        former = before[1].doc if before is not None and before[1].usable else None
        if former is None and owner is not None:
            former = document_validation.gpu_fields_of(owner.doc)
        found = document_validation.validate(table, doc, former)
        self._rows[key] = doc, found
        return found

    def document(self, table: str, key: Any) -> Doc | None:
        """Return the row as it was read, with its invalid fields."""
        return self._rows[at][0] if (at := row_key(table, key)) in self._rows else None

    def invalid_fields(self, table: str) -> dict[str, tuple[str, ...]]:
        """Invalid fields of all rows of a table as sentences, by `_id`."""
        found = {str(key): row.invalid_fields for (of, key), (_, row) in list(self._rows.items()) if of == table}
        return {key: sentences for key, sentences in found.items() if sentences}

    def invalid_fields_of(self, table: str, key: Any) -> tuple[str, ...]:
        _, found = self._rows.get(row_key(table, key), (None, None))
        return () if found is None else found.invalid_fields

    def forget_row(self, table: str, key: Any) -> None:
        self._rows.pop(row_key(table, key), None)

    def keep_only(self, rows: Iterable[tuple[str, Any]]) -> None:
        for gone in set(self._rows) - {row_key(*row) for row in rows}:  # at once, as other threads add to it
            self._rows.pop(gone, None)


def owners_of(jobs: Iterable[JobRecord]) -> dict[str, JobRecord]:
    """The job that each GPU belongs to, by the jobs' own documents."""
    return {gpu_id: job for job in jobs for gpu_id in job.gpu_ids}


def is_by_hand(doc: Doc) -> bool:
    """True if intake has not accepted it, so that its `closed` was written by hand, or no write finds its `_id`."""
    return doc.get("uid") in (None, "") or isinstance(doc["_id"], dict | list)


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
