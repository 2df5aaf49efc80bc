"""Remembers documents that intake could neither let in nor mark with what is wrong, since no write finds them.

A user's own program may give a document an `_id` that the store finds no row by: a fraction, a list, broken text.
Promises: each is told once, with what to do, and shown as long as it is there. Kept by `DecisionLoop`. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coordinator.errors import Conflict, ReshapeError
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow
from coordinator.stores.row_facts import row_key


class UnmarkedDocuments:
    """Thread-safe to read: what is kept is replaced, not changed."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Any], JobRow] = {}  # the document as no write found it
        self._told: dict[tuple[str, Any], str] = {}

    def keep_only(self, new: Iterable[JobRecord]) -> None:
        """Forget all but these documents, and each that has changed since."""
        now = {row_key("jobs", job.key): job.doc for job in new} if self._seen else {}
        self._seen = {row: doc for row, doc in self._seen.items() if now.get(row) == doc}
        self._told = {row: why for row, why in self._told.items() if row in self._seen}

    def told(self, job: JobRecord, error: ReshapeError) -> str:
        """Return what to tell of a document that could not be written; empty if that was told, or may pass.

        One that somebody else has changed at this moment is not found either, the first time.
        """
        row = row_key("jobs", job.key)
        again = row in self._seen
        self._seen = {**self._seen, row: job.doc}
        if row in self._told or (isinstance(error, Conflict) and not again):
            return ""
        why = f"it can be neither let in nor marked ({str(error).rstrip('.')})"
        sentence = f"{why}: delete this document, and insert it again with a text as _id"
        self._told = {**self._told, row: sentence}
        return sentence

    def told_of_job(self, job: JobRecord) -> tuple[str, ...]:
        """Return what was told of it."""
        told = self._told.get(row_key("jobs", job.key))
        return () if told is None else (told,)
