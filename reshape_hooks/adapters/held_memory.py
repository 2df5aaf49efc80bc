"""Hands GPU memory to the process that holds it between two trainers, and takes it back, with driver calls.

The other side is `sidecar/gpu_memory.py`. Promises: what is handed over is sealed only after all of it has arrived;
none of this process's own memory is shared, only written to the holder's or read from it. Called by `gpu_state`.
Standard library and the driver's library, Python 3.8.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reshape_hooks import plain

ALIGN = 256  # bytes, the driver's own alignment
DRIVER = "libcuda.so.1"
LAZY_PEER_ACCESS = 1


class CannotBeHeld(Exception):
    """Raised when the state must be saved as without a holder; the argument says why."""


class Handle(ctypes.Structure):
    """CUipcMemHandle: names another process's memory; 64 bytes, passed by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Piece(NamedTuple):
    """Memory of this process that the driver can copy: address and size in bytes."""

    address: int
    size: int


class OtherMemory:
    """The holder's memory, opened in this process, whose context must be current. Raises CannotBeHeld, OSError."""

    def __init__(self, handle: str) -> None:
        self.driver = ctypes.CDLL(DRIVER)
        self.driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), Handle, ctypes.c_uint]
        address = ctypes.c_uint64()
        opened = Handle.from_buffer_copy(bytes.fromhex(handle))
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), opened, LAZY_PEER_ACCESS)
        self.address = address.value

    def copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy each (to, from, bytes), and return when all copies are done."""
        for target, source, size in copies:
            where = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size)
            self._call("cuMemcpyAsync", *where, None)
        self._call("cuStreamSynchronize", None)

    def close(self) -> None:
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(self.address))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code:
            raise CannotBeHeld(f"{name} failed with CUDA error {code}")


def uuid_of(device: int) -> str:
    """Return the UUID of the GPU with this index in this process, as 32 hex digits.

    Raises CannotBeHeld, and OSError without a driver.
    """
    driver = ctypes.CDLL(DRIVER)
    found, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if driver.cuDeviceGet(ctypes.byref(found), device) or driver.cuDeviceGetUuid(uuid, found):
        raise CannotBeHeld("the driver does not tell which GPU it is")
    return bytes(uuid).hex()


def offered() -> Path | None:
    """Return the folder of in-memory copies if the shim also offers to hold what is on the GPU; else None."""
    folder = os.environ.get("RESHAPE_MEMORY")
    if not folder or not all((Path(folder) / name).exists() for name in (plain.HOLDER, plain.ROOM)):
        return None
    return Path(folder)


def hand_over(folder: Path, pieces: Sequence[Piece], device: int, reserved: int) -> dict[str, Any]:
    """Copy these pieces to the holder; return what `take_back` needs, to be kept as `plain.TENSORS`.

    `device`: the index of their GPU, whose context is current and which is idle. `reserved`: bytes of its memory that
    this process has allocated. Raises CannotBeHeld, OSError.
    """
    begins, size = _places([piece.size for piece in pieces])
    holder = plain.HolderConnection(folder / plain.HOLDER)
    try:
        answer = holder.ask("reserve", bytes=size, reserved=reserved, uuid=uuid_of(device))
        if not answer["ok"]:
            raise CannotBeHeld(answer["why"])
        memory = OtherMemory(answer["handle"])
        there = [memory.address + begin for begin in begins]
        memory.copy([(to, piece.address, piece.size) for to, piece in zip(there, pieces) if piece.size])
        memory.close()
        if not holder.ask("seal", token=answer["token"])["ok"]:
            raise CannotBeHeld("it could not be sealed")
    finally:
        holder.close()
    sizes = [piece.size for piece in pieces]
    return {"token": answer["token"], "device": device, "sizes": sizes, "begins": begins, "bytes": size}


def take_back(kept: Mapping[str, Any], make: Callable[[int], tuple[Any, int]]) -> list[Any] | None:
    """Return what was handed over, copied into new memory of this process; None if it is no longer on this GPU.

    `make(bytes)`: returns a new object of that size and its address. Raises CannotBeHeld, OSError.
    """
    holder = plain.HolderConnection(Path(os.environ.get("RESHAPE_MEMORY", "")) / plain.HOLDER)
    try:
        answer = holder.ask("open", token=kept["token"], uuid=uuid_of(kept["device"]))
        if not answer["ok"]:
            return None
        memory = OtherMemory(answer["handle"])
        made = [make(size) for size in kept["sizes"]]
        there = [memory.address + begin for begin in kept["begins"]]
        memory.copy([(to, source, size) for (_, to), source, size in zip(made, there, kept["sizes"]) if size])
        memory.close()
        holder.ask("done")
        return [one for one, _ in made]
    finally:
        holder.close()


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return each piece's offset in the holder's memory, and the total bytes."""
    begins, size = [], 0
    for one in sizes:
        begins.append(size)
        size += -(-one // ALIGN) * ALIGN
    return begins, size
