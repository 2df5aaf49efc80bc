"""Keeps the log of a `reshape up` in the background short: its own output, and that of what it has started.

Promises: what is dropped is the oldest; no line is lost between the two files, and each is at most `MOST` bytes long,
but for what comes within `LOOK_S`. A full disk or a want of descriptors leaves the log as it is until later. Used by
`detached` before a start, and by `up` while it runs.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

LOG, OLD, NEW = "up.log", "up.log.1", "up.log.new"
MOST = 16 << 20  # bytes
LOOK_S = 1.0  # who repeats a line without end writes some megabytes in that time
OUTPUTS = (1, 2)  # stdout and stderr


def keep_short(state: Path, end: threading.Event, most: int = MOST, look_s: float = LOOK_S) -> None:
    """Begin the log of this process anew whenever it is longer than `most` bytes, until `end`."""
    while not end.wait(look_s):
        with suppress(OSError):
            _shorten_if_long(state, most)


def _shorten_if_long(state: Path, most: int) -> None:
    log = (state / LOG).stat()
    ours = [fd for fd in OUTPUTS if os.path.samestat(os.fstat(fd), log)]
    if not ours or log.st_size <= most:
        return
    new = os.open(state / NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    try:
        set_aside(state, most)
        (state / NEW).rename(state / LOG)
        for fd in ours:  # until then it writes into the old one
            os.dup2(new, fd)
    finally:
        os.close(new)


def set_aside(state: Path, most: int = MOST) -> None:
    """Rename the log to `OLD`, in the place of an earlier one, if it is longer than `most` bytes."""
    with suppress(FileNotFoundError):
        if (state / LOG).stat().st_size > most:
            (state / LOG).rename(state / OLD)
