"""Fetches a data set over HTTP into a file, once.

Promises: the file is there in full or not at all; of several concurrent fetches one downloads and the others wait; an
interrupted download is resumed if the server shows that the content is the same, else restarted; only http and https
are followed; the part of a URL after its path, such as a signature, is never printed. In a pod it is the init container
`python -m sidecar.startup.fetch --to FILE`, with the URL in RESHAPE_FETCH; on one machine `launcher.datasets` calls
`fetch` in a thread. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, responses
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

ADDRESS, SHA256 = "RESHAPE_FETCH", "RESHAPE_FETCH_SHA256"
PIECE = 1 << 20  # bytes
SPARE = 64 << 20  # bytes to leave free on the disk: others write there, too
SILENCE_S = 30.0  # how long a server may stay silent
PAUSES_S = (1.0, 5.0, 15.0)  # before retrying after an attempt without progress; progress resets them
TURN_S = 0.2  # how often to check whether another process has fetched it
MAY_PASS = frozenset({408, 425, 429})  # transient, besides 500 and above
NO_RANGE = 416
PARTIAL = 206
REDIRECTS = range(300, 400)


class FetchFailed(Exception):
    """Raised when it cannot be fetched; one sentence for the user."""


class FetchStopped(Exception):
    """Raised once `stopped` is true; the partial file stays for the next attempt."""


class _Interrupted(Exception):
    """Raised when a transfer breaks off for a transient reason; one sentence."""


@dataclass(slots=True)
class FetchProgress:
    """Progress of a download in bytes; `total` is None if the server does not say."""

    done: int = 0
    total: int | None = None

    def __str__(self) -> str:
        return size(self.done) + (f" of {size(self.total)}" if self.total else "")


def size(count: float) -> str:
    """Format a number of bytes for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def shown(address: str) -> str:
    """Return a URL without its secrets: a query, such as a signature, and a password."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" + ("?..." if parts.query else "")


def fetch(
    address: str,
    file: Path,
    sha256: str = "",
    stopped: Callable[[], bool] = lambda: False,
    progress: FetchProgress | None = None,
) -> None:
    """Fetch `address` into `file` unless it exists.

    Raises `FetchFailed`, or `FetchStopped` soon after `stopped` is true.
    """
    if file.exists():
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _turn(file, stopped):
            if not file.exists():
                _Download(address, file, sha256, stopped, progress or FetchProgress()).run()
    except OSError as error:
        raise FetchFailed(_unwritable(file.parent, error)) from None


@contextlib.contextmanager
def _turn(file: Path, stopped: Callable[[], bool]) -> Iterator[None]:
    """Wait until nobody else fetches the file, in this process or another."""
    with (file.parent / ".lock").open("wb") as lock:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if stopped():
                raise FetchStopped
            time.sleep(TURN_S)
        yield


class _Download:
    """One data set, fetched by this process alone."""

    def __init__(
        self, address: str, file: Path, sha256: str, stopped: Callable[[], bool], progress: FetchProgress
    ) -> None:
        self._address, self._file, self._sha256 = address, file, sha256.lower()
        self._stopped, self._progress = stopped, progress
        self._part, self._mark = file.parent / ".part", file.parent / ".mark"

    def run(self) -> None:
        self._bring()
        with self._part.open("rb") as part:
            os.fsync(part.fileno())
            self._compare(part)
        self._part.chmod(0o644)  # for any user of an image
        self._part.replace(self._file)
        self._mark.unlink(missing_ok=True)

    def _bring(self) -> None:
        """Retry until the partial file is complete."""
        failures = 0
        while True:
            before = self._have()
            try:
                return self._try()
            except _Interrupted as why:
                failures = 1 if self._have() > before else failures + 1
                if failures > len(PAUSES_S):
                    raise FetchFailed(f"{why}; look whether its address is right and reached from here") from None
            self._pause(PAUSES_S[failures - 1])

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._look()
            time.sleep(TURN_S)

    def _look(self) -> None:
        if self._stopped():
            raise FetchStopped

    def _have(self) -> int:
        """Return how many resumable bytes are there."""
        try:
            return self._part.stat().st_size if self._mark.read_bytes() else 0
        except FileNotFoundError:
            return 0

    def _try(self) -> None:
        self._look()
        have = self._have()
        try:
            with self._ask(have) as answer:
                self._receive(answer, have)
        except HTTPError as refused:
            refused.close()
            if refused.code == NO_RANGE and have:
                self._mark.unlink()
                raise _Interrupted(f"{shown(self._address)} has changed while it was fetched") from None
            raise self._refusal(refused.code) from None
        except (URLError, HTTPException, _NoAnswer) as error:
            why = getattr(error, "reason", None) or error
            raise _Interrupted(f"{shown(self._address)} cannot be fetched ({why})") from None

    def _ask(self, have: int) -> HTTPResponse:
        headers = {"User-Agent": "volcano-reshape", "Accept-Encoding": "identity"}
        if have:
            headers |= {"Range": f"bytes={have}-", "If-Range": self._mark.read_text("latin-1")}
        try:
            answer: HTTPResponse = _OPENER.open(Request(self._address, headers=headers), timeout=SILENCE_S)
        except (URLError, HTTPException):
            raise
        except ValueError as error:  # its message may contain the whole URL
            raise FetchFailed(f"{shown(self._address)} is no address that can be fetched") from error
        except OSError as error:
            raise _NoAnswer(error) from None
        return answer

    def _refusal(self, code: int) -> Exception:
        if code in REDIRECTS:
            return FetchFailed(f"{shown(self._address)} leads to an address that is neither http nor https, or round")
        said = (
            f"{shown(self._address)} cannot be fetched: its server answered {code} ({responses.get(code, 'unknown')})"
        )
        if code >= 500 or code in MAY_PASS:
            return _Interrupted(said)
        return FetchFailed(f"{said}; correct the job's `dataset`")

    def _receive(self, answer: HTTPResponse, have: int) -> None:
        """Write the server's content to the partial file: appending, or from the start."""
        goes_on = answer.status == PARTIAL
        if goes_on and not re.match(rf"bytes {have}-", answer.headers.get("Content-Range") or ""):
            self._mark.unlink()
            raise _Interrupted(f"{shown(self._address)} sent another part than it was asked for")
        have = have if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdigit() else None
        self._progress.done, self._progress.total = have, total
        self._room(0 if total is None else total - have)
        if not goes_on:
            self._part.write_bytes(b"")
            self._mark.write_text(_validator(answer), "latin-1")
        with self._part.open("ab") as part:
            self._copy(answer, part)
        if total is not None and self._progress.done != total:
            raise _Interrupted(f"{shown(self._address)} broke off after {self._progress}")

    def _copy(self, answer: HTTPResponse, part: BinaryIO) -> None:
        while True:
            self._look()
            try:
                piece = answer.read1(PIECE)
            except OSError as error:
                raise _NoAnswer(error) from None
            if not piece:
                return
            self._room(len(piece))
            part.write(piece)
            part.flush()  # so that the next attempt can resume, however this one ends
            self._progress.done += len(piece)

    def _room(self, needed: int) -> None:
        free = shutil.disk_usage(self._file.parent).free - SPARE
        if needed > free:
            self._part.unlink(missing_ok=True)
            self._mark.unlink(missing_ok=True)
            raise FetchFailed(
                f"{shown(self._address)} needs {size(needed)} more than is there, and {self._file.parent} has room "
                f"for {size(max(0, free))}: make room there"
            )

    def _compare(self, part: BinaryIO) -> None:
        if not self._sha256:
            return
        digest = hashlib.sha256()
        while piece := part.read(PIECE):
            self._look()
            digest.update(piece)
        if digest.hexdigest() != self._sha256:
            self._part.unlink()
            raise FetchFailed(
                f"{shown(self._address)} has the SHA-256 {digest.hexdigest()}, not that of the job's "
                "`dataset_sha256`: correct it, if this is the data set that is meant"
            )


class _NoAnswer(Exception):
    """An `OSError` of the connection, as opposed to one of the disk."""

    @property
    def reason(self) -> str:
        error = self.args[0]
        return str(error.strerror or error)


def _validator(answer: HTTPResponse) -> str:
    """Return the validator by which the server later recognizes this content; empty if none (RFC 9110, 13.1.5)."""
    tag = answer.headers.get("ETag") or ""
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified") or ""


def _unwritable(folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the data set does not fit on the disk of {folder}: make room there"
    user = f" by user {os.getuid()}" if error.errno in (errno.EACCES, errno.EPERM) else ""
    return f"the data set cannot be written to {folder}{user}: {error.strerror}"


def _opener() -> OpenerDirector:
    """Return an opener without file, FTP and data URLs, even as redirect targets."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        HTTPHandler,
        HTTPSHandler,
        HTTPDefaultErrorHandler,
        HTTPRedirectHandler,
        HTTPErrorProcessor,
        UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


_OPENER = _opener()


def main() -> int:
    parser = argparse.ArgumentParser(prog="sidecar.startup.fetch", description="Fetches the data set of a job.")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="the address is in " + ADDRESS)
    file = parser.parse_args().to
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # PID 1 ignores it otherwise
    try:
        fetch(os.environ.get(ADDRESS, ""), file, os.environ.get(SHA256, ""))
    except FetchFailed as error:
        print(error, file=sys.stderr)  # noqa: T201 (the pod's log, and the message of its job)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
