"""Keeps a training's output in two files, addressed by its offset in everything ever printed.

Promises: an offset names the same byte forever, across rotations; discarded output is replaced by a sentence, and no
two partial lines are joined that were not one. A full file is moved to `<path>.1`, at the end of a line if possible,
and the first line of the next one says how many bytes came before. Called by the shim, which writes it, and by its
readers: the endpoints and the local platform. Standard library only, Python 3.8.
"""

import contextlib
import os
import re
from typing import IO, Any, Callable, List, NamedTuple, Optional, Tuple

OLD = ".1"
NEW = ".new"
FIRST_LINE = "reshape: {} bytes of output came before these; the newest of them are in the file that ends in .1\n"
_FIRST_LINE = re.compile(re.escape(FIRST_LINE).replace(r"\{\}", "([0-9]{1,18})").encode())
LOST = "\n… the output before this line is gone …\n"
Opener = Optional[Callable[[str, int], int]]


class Part(NamedTuple):
    """One of the two files; offsets count everything ever printed."""

    file: "IO[bytes]"
    begin: int
    end: int
    head: int  # bytes of its first line, if we wrote that


def open_as_it_is(path: str, flags: int) -> int:
    """Open what the training may have put there: a link is not followed, a pipe is not waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def open_to_write(path: str, full: bool = False) -> "IO[bytes]":
    """Open the newest file for appending. `full`: rotate it first."""
    if full and os.path.exists(path):
        os.replace(path, path + OLD)  # first, since this makes room on a full disk
    if not os.path.exists(path) and os.path.exists(path + OLD):
        with open(path + OLD, "rb") as old:
            before = _measure_part(old).end
        with open(path + NEW, "wb", buffering=0) as new:
            new.write(FIRST_LINE.format(before).encode())
        os.replace(path + NEW, path)  # so that no reader sees it without its first line
    return open(path, "ab", buffering=0)


def ends_open(path: str) -> bool:
    """Return whether the file's last line is unterminated, as after a killed process."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    return False


def read(path: str, offset: int, limit: int, opener: Opener = None) -> Tuple[bytes, int]:
    """Return about `limit` bytes from this offset, and the next offset; nothing and 0 if there is no file.

    What is left out in between is named in a line of its own. A place below zero counts from the end.
    """
    with contextlib.ExitStack() as opened:
        parts = _find_parts(path, opened, opener)
        if not parts:
            return LOST.encode() if offset > 0 else b"", 0
        words = b""
        if offset < 0:
            offset = max(parts[0].begin, parts[-1].end + offset)
        if offset > parts[-1].end:  # this is another log than the one that was read before
            words = LOST.encode()
            offset = parts[-1].begin
        elif offset < parts[0].begin:
            words = _left_out(parts[0].begin - offset, bool(offset))
            offset = parts[0].begin
        found = b""
        for part in parts:
            if part.begin <= offset < part.end and len(found) < limit:
                part.file.seek(part.head + offset - part.begin)
                piece = part.file.read(min(limit - len(found), part.end - offset))
                found += piece
                offset += len(piece)
        return words + found, offset


def _find_parts(path: str, opened: "contextlib.ExitStack[Any]", opener: Opener) -> List[Part]:
    """Return the parts still kept, oldest first."""
    found = []
    for name in (path, path + OLD):  # the newest first, since it may be rotated meanwhile
        with contextlib.suppress(FileNotFoundError):
            found.append(_measure_part(opened.enter_context(_open_to_read(name, opener))))
    if len(found) < 2:
        return found  # the newest, or the one before while the newest is being created
    newest, old = found
    return [old._replace(end=newest.begin), newest] if old.begin < newest.begin <= old.end else [newest]


def _open_to_read(path: str, opener: Opener) -> "IO[bytes]":
    return open(path, "rb", opener=opener)


def _measure_part(file: "IO[bytes]") -> Part:
    size = file.seek(0, os.SEEK_END)  # fails for a pipe, which is refused this way
    file.seek(0)
    first = _FIRST_LINE.match(file.read(len(FIRST_LINE) + 18))
    head = first.end() if first else 0
    begin = int(first.group(1)) if first else 0
    return Part(file, begin, begin + size - head, head)


def _left_out(count: int, behind_some: bool) -> bytes:
    size = f"{count / 1e6:.{int(count < 1e7)}f} MB" if count >= 1e6 else f"{count} bytes"
    return ("\n" if behind_some else "").encode() + f"… {size} of output left out …\n".encode()
