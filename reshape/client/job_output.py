"""Reads the output of a job's training piece by piece, and waits for its end.

Promises every byte once and in order, also while the job moves between pods, and after its last pod is gone if the log
lies on a claim. Raises `CoordinatorRefused` with the coordinator's sentence if the log is lost. Each function yields
None where a caller should pause for `POLL_S`, in its own way: `patiently`, or with await.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from reshape.client.connection import CoordinatorRefused, View

POLL_S = 0.5  # how often more is asked for
WAITS, ENDED = "submitted", ("completed", "failed", "cancelled")
BUSY, GONE = 503, 410  # answers of the coordinator
FETCHES_S = 60.0  # how long it may take until a log that outlived its pod is shown

T = TypeVar("T")


class JobReader(Protocol):
    """The part of `reshape.client.Client` that this module uses."""

    def job(self, job_id: str) -> View: ...

    def logs(self, job_id: str, offset: int = 0) -> tuple[bytes, int]: ...


def patiently(steps: Iterator[T | None]) -> Iterator[T]:
    """Sleep where a step is None."""
    for step in steps:
        if step is None:
            time.sleep(POLL_S)
        else:
            yield step


def until_ended(client: JobReader, job_id: str, timeout_s: float | None = None) -> Iterator[View | None]:
    """Yield the job as it is, again and again, at last as it ended or was not accepted. `TimeoutError` after that."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        job = client.job(job_id)
        yield job
        if has_ended(job):
            return
        if until is not None and time.monotonic() >= until:
            raise TimeoutError(f"Job {job_id} did not end within {timeout_s:g} s; it keeps running.")
        yield None


def has_ended(job: Mapping[str, Any]) -> bool:
    """Return whether nothing more will become of a job."""
    return job.get("state") in ENDED or not_accepted(job)


def not_accepted(job: Mapping[str, Any]) -> bool:
    """Return whether the job was never admitted; later invalid edits also give a job problems."""
    return bool(job.get("problems")) and not job.get("launch") and job.get("state") not in ENDED


def pieces(client: JobReader, job_id: str, follow: bool, offset: int = 0) -> Iterator[bytes | None]:
    while True:
        # The state first: what a job writes before it ends is then surely read.
        state = client.job(job_id)["state"] if follow else None
        try:
            # While it waits in the queue nothing is written: what there is was read.
            if not (state == WAITS and offset):
                piece, offset = yield from _fetched(client, job_id, offset)
            else:
                piece = b""
        except CoordinatorRefused as gone:
            if gone.status == GONE and offset and follow:  # with its pod, just now
                return
            raise
        if piece:
            yield piece
        elif state is None or state in ENDED:
            return
        else:
            yield None


def last_lines(client: JobReader, job_id: str, count: int, follow: bool) -> Iterator[bytes | None]:
    """The last `count` lines, and with `follow` what comes after them. Reads all that was written, keeps only those."""
    kept, offset = b"", 0
    while True:
        piece, offset = yield from _fetched(client, job_id, offset)
        if not piece:
            break
        lines = (kept + piece).splitlines(keepends=True)
        kept = b"".join(lines[max(0, len(lines) - count) :])
    yield kept
    if follow:
        yield from pieces(client, job_id, True, offset)


def lines(found: Iterator[bytes | None]) -> Iterator[str | None]:
    """The lines of these pieces, without their ends; what is no UTF-8 is shown as a question mark."""
    decoder, begun = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for piece in found:
        if piece is None:
            yield None
            continue
        *whole, begun = (begun + decoder.decode(piece)).split("\n")
        yield from whole
    if begun := begun + decoder.decode(b"", True):
        yield begun


def _fetched(client: JobReader, job_id: str, offset: int) -> Generator[None, None, tuple[bytes, int]]:
    """The log of a job whose pod is gone is fetched first, which takes some seconds."""
    until = time.monotonic() + FETCHES_S
    while True:
        try:
            return client.logs(job_id, offset)
        except CoordinatorRefused as busy:
            if busy.status != BUSY or time.monotonic() > until:
                raise
            yield None
