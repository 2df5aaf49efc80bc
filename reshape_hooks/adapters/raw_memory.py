"""Tells what memory beside Python's own values holds: of ctypes, of mappings without a file, of open data bases.

    counts = (ctypes.c_int64 * 4)()
    for step in state.steps(100):
        counts[0] += 1  # would begin anew after a stop

Memory behind an array in a variable of the script counts as that array's, which is kept. Called by `library_values`;
standard library, Python 3.8 and newer.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reshape_hooks.adapters.script_frames import scopes

MOST_BYTES = 256 << 20  # that are compared at each save
VALUES = ("Structure", "Union", "Array", "_SimpleCData")  # of ctypes, which hold bytes of their own
NO_FILE = ("/dev/zero (deleted)", "/memfd:")  # begin what the kernel calls a mapping that ends with its processes
COPIES = ("Anonymous:", "Swap:")  # fields of the kernel: kB of a private mapping that differ from its file
ZEROS = bytes(1 << 20)


class _NeverEqual:
    """Stands for a state that cannot be compared."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False


def holds_memory(kind: type) -> bool:
    """Return whether objects of this type hold bytes that neither pickling nor attributes show."""
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is not None and issubclass(kind, tuple(getattr(ctypes, name, ()) for name in VALUES)):
        return not issubclass(kind, ctypes.py_object)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name in ("mmap.mmap", "multiprocessing.shared_memory.SharedMemory") or _is_private_map(kind)


def state_of_memory(value: Any) -> dict[str, Any]:
    """Return a digest of these bytes; empty if a file holds them, or arrays of the script are all that there is."""
    try:
        held = memoryview(getattr(value, "buf", value)).cast("B")
    except (TypeError, ValueError, BufferError):  # it is closed, or of a type that is not contiguous
        return {}
    with held:
        if held.readonly or not held.nbytes or (_is_mapping(type(value)) and _is_kept_by_file(held)):
            return {}
        spans = _spans_beside(held, value)
        if sum(end - begin for begin, end in spans) > MOST_BYTES:
            return {"too large": _NeverEqual()}
        total = at = 0
        for begin, end in spans:
            total = _checksum_of_zeros(begin - at, total)
            total = zlib.crc32(held[begin:end], total)
            at = end
        total = _checksum_of_zeros(held.nbytes - at, total)
        return {"bytes": (held.nbytes, total)}


def is_connection(kind: type) -> bool:
    """Return whether objects of this type are connections to a SQLite data base."""
    sqlite: Any = sys.modules.get("sqlite3")
    return sqlite is not None and issubclass(kind, sqlite.Connection)


def state_of_connection(value: Any) -> dict[str, Any]:
    """Return what only the connection has: rows that are not committed, or a data base in memory; empty if nothing."""
    sqlite: Any = sys.modules["sqlite3"]
    try:
        if value.in_transaction:
            return {"not committed": _NeverEqual()}
        reads = value.cursor()
        reads.row_factory = None
        files = [row[2] for row in reads.execute("PRAGMA database_list").fetchall()]
        return {} if all(files) or not value.total_changes else {"changes": value.total_changes}
    except sqlite.Error:  # closed, or of another thread
        return {}


def advice_about(kind: type) -> str:
    """Return how a script keeps what such an object holds, for people."""
    if is_connection(kind):
        return "commit in each step, to a data base in a file"
    return "keep its numbers in an array or a dictionary that Elastic is given, or in a file"


def _is_private_map(kind: type) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, getattr(numpy, "memmap", ()))


def _is_mapping(kind: type) -> bool:
    return kind.__module__ == "mmap" or _is_private_map(kind)


def _is_kept_by_file(held: memoryview) -> bool:
    """Return whether a file has what is in this mapping: all is written to it, or nothing was written."""
    address = _address_of(held)
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            begin, _, end = line.split(None, 1)[0].partition("-")
            if int(begin, 16) <= address < int(end, 16):
                words = line.rstrip("\n").split(None, 5)
                of_file = len(words) == 6 and not words[5].startswith(NO_FILE)
                return of_file and (words[1][3] == "s" or _is_unwritten(address, address + held.nbytes))
    return True


def _is_unwritten(begin: int, end: int) -> bool:
    """Return whether the kernel has made no copies of pages of the private mapping at these addresses."""
    told = within = False
    with Path("/proc/self/smaps").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split(None, 2)
            if not words[0].endswith(":"):  # a mapping
                first, _, last = words[0].partition("-")
                within = int(first, 16) < end and begin < int(last, 16)
            elif within and words[0] in COPIES:
                told = True
                if words[1] != "0":
                    return False
    return told


def _address_of(held: memoryview) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(held))


def _checksum_of_zeros(size: int, total: int) -> int:
    """Return the checksum after so many bytes of an array, which stand for whatever it holds."""
    while size > 0:
        total = zlib.crc32(ZEROS[:size], total)
        size -= len(ZEROS)
    return total


def _spans_beside(held: memoryview, value: Any) -> list[tuple[int, int]]:
    """Return which parts of this memory no array of the script shows, in bytes from its begin."""
    spans = []
    at = 0
    for begin, end in sorted(_of_arrays(held, value)):
        if begin > at:
            spans.append((at, begin))
        at = max(at, end)
    return [*spans, (at, held.nbytes)] if at < held.nbytes else spans


def _of_arrays(held: memoryview, value: Any) -> Iterator[tuple[int, int]]:
    """Yield where arrays in variables of the script lie within this memory, in bytes from its begin."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return
    begin = _address_of(held)
    for scope in scopes():
        for one in list(scope.variables.values()):
            if type(one) is numpy.ndarray and one is not value and one.nbytes and one.flags.contiguous:
                at = one.ctypes.data - begin
                if 0 <= at < held.nbytes:
                    yield at, min(at + one.nbytes, held.nbytes)
