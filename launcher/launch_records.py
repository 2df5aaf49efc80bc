"""Keeps a copy of the document of each launched job beside the store, and asks the shims of this machine what runs.

Promises: after the loss of the store, documents of all jobs that were launched and have not ended can be read here, as
they were at the last step of an operation; a copy that cannot be written costs a line in the log, never the step. One
file per job: in `records` until it has ended, then in its own folder. Called by `local.py`. It holds no key.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow, plain
from coordinator.ports import Doc
from launcher.acting_as import acting_as
from launcher.names import job_name
from sidecar.protocol import ShimStatus

RECORDS = "records"  # in the state folder: the copies of jobs that have not ended
ENDED = "job.json"  # in the folder of a job that has ended
ENDED_APART = "ended"  # in place of that, on a shared machine: a folder of the state folder
ANSWER_S = 2.0  # for a shim to answer: a frozen one accepts connections and is silent
MOST_BYTES, PIECE = 1 << 20, 64 * 1024  # of an answer, and of what is read of it at once

log = logging.getLogger(__name__)


class _Answer(msgspec.Struct):
    """A line of the shim: an answer has `ok`, a push has not."""

    ok: bool | None = None
    status: ShimStatus | None = None


def ended_copy(jobs: Path, name: str) -> Path:
    """Return the copy of the job of that folder below `jobs`, for which it has ended.

    On a shared machine the folder is its owner's, who could forge it there: it lies in a folder of root.
    """
    apart = jobs.parent / ENDED_APART
    return apart / f"{name}.json" if apart.is_dir() else jobs / name / ENDED


class LaunchRecords:
    """Thread-safe. `state`: the state folder; `jobs`: the folder of its jobs and launches."""

    def __init__(self, state: Path, jobs: Path) -> None:
        self._open = state / RECORDS
        self._jobs = jobs

    def keep(self, doc: JobRow) -> None:
        """Write the copy of this document in place of an earlier one."""
        job = JobRecord(doc)
        name = job_name(job.id, job.uid)
        here, ended = self._open / f"{name}.json", ended_copy(self._jobs, name)
        over = job.state in s.ENDED
        try:
            if not over:
                self._open.mkdir(mode=0o700, parents=True, exist_ok=True)
                _write(here, doc)
            elif ended.parent.is_dir():
                _write(ended, doc)
        except OSError as error:
            log.warning("the copy of job %s beside the store is not written: %s", job.id, error)
        if over:  # also on a full disk, or the copy would bring the job back once the store has dropped it
            self.remove_copy(job.id, job.uid)

    def remove_copy(self, job_id: str, uid: str) -> None:
        """Remove the copy of a job whose document was deleted."""
        with suppress(OSError):
            (self._open / f"{job_name(job_id, uid)}.json").unlink(missing_ok=True)

    def open(self) -> Iterator[Doc]:
        """Yield the documents of launched jobs that have not ended."""
        yield from filter(None, map(read_copy, sorted(self._open.glob("*.json"))))

    def ended(self, jobs: Iterable[JobRow]) -> Iterator[Doc]:
        """Yield the documents of those of these jobs that have ended since."""
        for job in map(JobRecord, jobs):
            if (doc := read_copy(ended_copy(self._jobs, job_name(job.id, job.uid)))) is not None:
                yield doc


def listens(folder: Path, uid: int | None = None) -> bool:
    """True unless the shim of this launch has certainly ended; one that is paused by a signal listens, too.

    `uid`: the user whose folder it is, on a shared machine.
    """
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(ANSWER_S)
        try:
            _connect(peer, folder, uid)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # so many ask it at once, or descriptors are wanting
            return True
    return True


def _connect(peer: socket.socket, folder: Path, uid: int | None) -> None:
    """Connect to the shim. A socket's path is limited to 108 bytes; a folder's is not."""
    with acting_as(uid):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            peer.connect(f"/proc/self/fd/{opened}/shim.sock")
        finally:
            os.close(opened)


def ask_status(folder: Path, uid: int | None = None) -> ShimStatus | None:
    """Return what the shim of this launch says; None if it does not answer. `uid`: as of `listens`."""
    with suppress(OSError, msgspec.MsgspecError), socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(ANSWER_S)
        _connect(peer, folder, uid)
        peer.sendall(b'{"do":"status"}\n')
        for line in _lines(peer, time.monotonic() + ANSWER_S):
            answer = msgspec.json.decode(line, type=_Answer)
            if answer.ok is not None:
                return answer.status
    return None


def _lines(peer: socket.socket, until: float) -> Iterator[bytes]:
    """Yield the lines that come until then: what answers may be a user's program that sends a byte now and then."""
    data = b""
    while len(data) < MOST_BYTES and (left := until - time.monotonic()) > 0:
        peer.settimeout(left)
        piece = peer.recv(PIECE)
        *lines, data = (data + piece).split(b"\n")
        yield from lines
        if not piece:
            return


def read_copy(path: Path) -> Doc | None:
    """Return the copy; None if there is none, or it is no document of a job."""
    try:
        doc = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return doc if isinstance(doc, dict) and doc.get("uid") and "_id" in doc else None


def _write(path: Path, doc: JobRow) -> None:
    """Write it; a value that JSON has no word for, as MongoDB holds, becomes text."""
    new = path.with_name(f"{path.name}.{threading.get_ident()}")
    text = json.dumps({field: value for field, value in plain(doc).items() if field != "emulated_speed"}, default=str)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
