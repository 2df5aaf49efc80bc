"""Follows the trainer's log file.

Promise: returns every byte once and in order, across truncation and rotation (the shim moves a full file to
`<output>.1` and begins another); a missing file counts as empty. Of a file that is already long when first opened,
since a job's log outlives its launches, only the beginning and the end are returned: reading all of it would delay the
next training. The same goes for output that is printed faster than it can be read, since a trainer's end is reported
only after its output; `passed_over` says so. Called by `service.py`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sidecar.kept_output import OLD

PIECE = 256 * 1024  # bytes returned at once
BEHIND = 1024 * 1024  # bytes at the end that are always returned
FAR_BEHIND = 16 * BEHIND  # unread bytes beyond which only the end is returned
OVERLAP = 4096  # between two pieces read backward, so that each line is whole in one of them


class LogTail:
    """The unread output of one log file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._at = 0  # offset in it
        self._met = False  # whether there has been a file
        self._skip_to = 0  # where to continue after its first piece
        self.began = 0  # offset in its file at which the last piece began
        self.passed_over = False  # whether some of the output was not returned

    def read(self) -> bytes:
        """Return the next piece; empty if there is none now."""
        if self._file is None and not self._reopen():
            return b""
        piece = self._piece()
        if not piece and self._moved():
            piece = self._piece()  # what came between the last read and the rotation
            if not piece and self._reopen():
                piece = self._piece()
        return piece

    def backwards(self) -> Iterator[bytes]:
        """Return all output still kept, from its end backward, in pieces of whole lines."""
        for path in (self._path, self._path.with_name(self._path.name + OLD)):
            with contextlib.suppress(OSError), path.open("rb") as file:
                end = size = file.seek(0, os.SEEK_END)
                while end > 0:
                    begin = max(0, end - BEHIND)
                    file.seek(begin)
                    piece = file.read(end - begin)
                    first = piece.find(b"\n") + 1 if begin else 0
                    last = piece.rfind(b"\n") + 1 if end < size else len(piece)
                    yield piece[first:last]
                    end = begin + OVERLAP if begin else 0

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _piece(self) -> bytes:
        if self._file is None:
            return b""
        size = os.fstat(self._file).st_size
        if size < self._at:
            self._at = 0
        piece = os.pread(self._file, PIECE, self._at)
        self.began, self._at = self._at, self._at + len(piece)
        if not self._skip_to and size - self._at > FAR_BEHIND:
            self._skip_to = size - BEHIND
        if self._skip_to and piece:
            self._at, self._skip_to = self._skip_to, 0
            self.passed_over = True
            return piece + b"\n"  # two cut lines do not make a whole one
        return piece

    def _moved(self) -> bool:
        """Return whether the path now names another file; False while it names none."""
        if self._file is None:
            return False
        try:
            there, ours = self._path.stat(), os.fstat(self._file)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _reopen(self) -> bool:
        self.close()
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._at = 0
        if self._file is not None and not self._met:
            self._met = True
            size = os.fstat(self._file).st_size
            self._skip_to = size - BEHIND if size > PIECE + BEHIND else 0
        return self._file is not None
