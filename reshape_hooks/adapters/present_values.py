"""Represents tensors and arrays as of now, in a small value that differs once they have changed.

Called by `variables`, `not_given` and what else compares states; standard library, Python 3.8 and newer.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
import zlib
from collections.abc import Callable
from typing import Any

MOST_BYTES = 1 << 20  # of an array that is compared in full
MOST_NUMBERS = 16  # of a tensor that are compared, each of which may have to come from a GPU
MOST_OF_ARRAY = 4096  # of a large array
MOST_WHOLE_BYTES = 256 << 20  # of an array whose bytes are read, which takes 0.1 s
OF_NUMBERS = "biufc"  # kinds of types


def reference(thing: Any) -> Callable[[], Any]:
    """Return a function that returns this object, or None once the script has let it go."""
    try:
        return weakref.ref(thing)
    except TypeError:  # its class has slots
        return lambda: thing


class TensorNow:
    """Represents a tensor: a change increments its version, except one through `.data`, which its numbers show.

    A copy with the same numbers is equal: some objects return copies as their state.
    """

    def __init__(self, tensor: Any) -> None:
        self.address = tensor.data_ptr()
        self.version = 0 if tensor.is_inference() else tensor._version
        self.numbers = ""
        if tensor.is_contiguous():
            all_of_them = tensor.detach().view(-1)
            every = -(-len(all_of_them) // MOST_NUMBERS)
            self.numbers = repr(all_of_them[::every].tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorNow) or self.numbers != other.numbers:
            return False
        return self.address != other.address or self.version == other.version


class ArrayNow:
    """Represents a JAX array, which is immutable: equal if the same one, or a small one with the same numbers."""

    def __init__(self, array: Any) -> None:
        self.there = reference(array)
        self.numbers = None
        if array.nbytes <= MOST_BYTES and not hasattr(array.dtype, "_impl"):  # not a key
            self.numbers = digest_of_array(sys.modules["numpy"].asarray(array))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayNow):
            return False
        there = self.there()
        same = there is not None and there is other.there()
        return same or (self.numbers is not None and self.numbers == other.numbers)


def digest_of_array(array: Any) -> bytes:
    """Return a checksum of a NumPy array; of some of its numbers if it is very large or not contiguous."""
    if array.flags.c_contiguous and array.nbytes <= MOST_WHOLE_BYTES and array.dtype.kind in OF_NUMBERS:
        return zlib.crc32(array.reshape(-1).view("u1")).to_bytes(4, "big")
    every = 1 if array.nbytes <= MOST_BYTES else -(-array.size // MOST_OF_ARRAY)
    return hashlib.blake2b(repr(array.flat[::every].tolist()).encode(), digest_size=16).digest()
