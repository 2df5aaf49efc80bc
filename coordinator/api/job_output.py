"""Reads what a job's training wrote, for those who may read it."""

from __future__ import annotations

import threading

from coordinator.api.access import Access, UserService
from coordinator.ports import Platform

TAIL = 32 * 1024  # bytes that are shown
MOST_TAILS = 100  # jobs of which they are kept


class JobOutput(UserService):
    """Thread-safe."""

    def __init__(self, access: Access, platform: Platform) -> None:
        super().__init__(access)
        self._platform = platform
        self._tails_lock = threading.Lock()
        self._tails: dict[tuple[str, str], tuple[int, bytes]] = {}  # offset and bytes before it, by job

    def logs(self, job_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        """Return at most `limit` bytes of the job's output from byte `offset`, and the offset after them."""
        return self._platform.output(self.access.find_own(job_id, "read_output").doc, offset, limit)

    def log_tail(self, job_id: str) -> bytes:
        """Return the end of a job's output. However long that is, no more is read of it than is shown."""
        job = self.access.find_own(job_id, "read_output")
        with self._tails_lock:
            offset, end = self._tails.pop((job.id, job.uid), (-TAIL, b""))
        piece, after = self._platform.output(job.doc, offset, TAIL)
        if len(piece) >= TAIL and offset >= 0:  # more came than is shown: what lies between is passed over
            piece, after = self._platform.output(job.doc, -TAIL, TAIL)
            end = b""
        end = ((end if after >= offset else b"") + piece)[-TAIL:]
        with self._tails_lock:
            self._tails[job.id, job.uid] = after, end
            while len(self._tails) > MOST_TAILS:
                self._tails.pop(next(iter(self._tails)))
        return end
