"""Reads the output of a job's training piece by piece, for `reshape logs` and `submit --follow`.

Promises every byte once and in order, also while the job moves between pods, and after its last pod is gone if the log
lies on a claim. Raises `CoordinatorRefused` with the coordinator's sentence if the log is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from reshape.client import Client, CoordinatorRefused

POLL_S = 0.5  # how often more is asked for
WAITS, ENDED = "submitted", ("completed", "failed", "cancelled")
BUSY, GONE = 503, 410  # answers of the coordinator
FETCHES_S = 60.0  # how long it may take until a log that outlived its pod is shown


def pieces(client: Client, job_id: str, follow: bool, offset: int = 0) -> Iterator[bytes]:
    while True:
        # The state first: what a job writes before it ends is then surely read.
        state = client.job(job_id)["state"] if follow else None
        try:
            # While it waits in the queue nothing is written: what there is was read.
            piece, offset = (b"", offset) if state == WAITS and offset else _patiently(client, job_id, offset)
        except CoordinatorRefused as gone:
            if gone.status == GONE and offset and follow:  # with its pod, just now
                return
            raise
        if piece:
            yield piece
        elif state is None or state in ENDED:
            return
        else:
            time.sleep(POLL_S)


def last_lines(client: Client, job_id: str, count: int, follow: bool) -> Iterator[bytes]:
    """The last `count` lines, and with `follow` what comes after them. Reads all that was written, keeps only those."""
    kept, offset = b"", 0
    while (found := _patiently(client, job_id, offset))[0]:
        piece, offset = found
        lines = (kept + piece).splitlines(keepends=True)
        kept = b"".join(lines[max(0, len(lines) - count) :])
    yield kept
    if follow:
        yield from pieces(client, job_id, True, offset)


def _patiently(client: Client, job_id: str, offset: int) -> tuple[bytes, int]:
    """The log of a job whose pod is gone is fetched first, which takes some seconds."""
    until = time.monotonic() + FETCHES_S
    while True:
        try:
            return client.logs(job_id, offset)
        except CoordinatorRefused as busy:
            if busy.status != BUSY or time.monotonic() > until:
                raise
            time.sleep(POLL_S)
