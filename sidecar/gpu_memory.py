"""Keeps a training's state in the memory of a GPU that its job retains, while its process is replaced.

At a stop in place, the process that writes copies to disk (`memory.py`) opens the retained GPU and listens on a socket.
The trainer reserves as many bytes as its state has, copies the state there, GPU to GPU, and exits; the next trainer
copies it back. The time hardly depends on the state's size, whereas saving and loading 15.7 GB takes 25 s. Promises: a
state counts only once sealed, which its trainer requests when all of it has arrived; a reservation whose trainer died
before that is freed; no more memory is taken than the next trainer leaves, as far as the present one tells; a CUDA
error is answered with a sentence, upon which the trainer saves as without us. Standard library and the driver's
library, Python 3.8: `memory.py` loads it from its own folder.
"""

import contextlib
import ctypes
import json
import os
import secrets
import selectors
import socket
import threading
import time
from typing import Any, Optional

DRIVER = "libcuda.so.1"
MARGIN = 256 * 1024 * 1024  # bytes kept free on the GPU beyond all foreseen use
CHUNK = 64 * 1024 * 1024  # bytes per write to disk
MOST_LINE = 64 * 1024  # bytes of a request
LOADED_WITHIN_S = 120.0  # how long a state already on disk also stays here if nobody has taken it
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class CudaFault(Exception):
    """Raised when the driver refuses a call; the argument is a sentence without its full stop."""


class Handle(ctypes.Structure):
    """CUipcMemHandle: names this process's memory to others; 64 bytes, passed by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class CudaGpu:
    """The first GPU visible to this process, through the driver's library. Raises CudaFault."""

    def __init__(self) -> None:
        try:
            self.driver = ctypes.CDLL(DRIVER)
        except OSError as fault:
            raise CudaFault(f"the NVIDIA driver's library cannot be loaded ({fault})") from None
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        uuid = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid", uuid, device)
        self.uuid = bytes(uuid).hex()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code:
            room = " (out of memory)" if code == OUT_OF_MEMORY else ""
            raise CudaFault(f"{name} failed with CUDA error {code}{room}")

    def attach(self) -> None:
        """Make this GPU's context current in the calling thread."""
        self.call("cuCtxSetCurrent", self._context)

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes on the GPU; return their address."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def release(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def handle(self, address: int) -> str:
        """Return the hex handle by which another process can open this memory."""
        handle = Handle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle.bytes).hex()

    def pinned(self, size: int) -> Any:
        """Return pinned host memory, to which the GPU copies at full speed."""
        address = ctypes.c_void_p()
        self.call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return (ctypes.c_ubyte * size).from_address(address.value or 0)

    def read(self, address: int, into: Any, size: int) -> None:
        self.call("cuMemcpyDtoH_v2", into, ctypes.c_uint64(address), ctypes.c_size_t(size))


class State:
    """A state on the GPU: `size` bytes at `address`, known to others by `token`. It counts once `sealed`."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.token = secrets.token_hex(16)
        self.sealed = False
        self.written = False
        self.loaded = False
        self.since = time.monotonic()


class StateHolder:
    """Serves one launch's trainers in its own thread; holds at most one state.

    `listener`: a listening socket. `gpus`: how many the present trainer has and the next one will have. `report`:
    called from that thread with words for the shim: `ready`, `holds <bytes>` or `refuses <why>`.
    """

    def __init__(self, listener: socket.socket, gpus: "tuple[int, int]", report: Any) -> None:
        self._listener = listener
        self._gpus = gpus
        self._report = report
        self._lock = threading.Lock()  # guards `_state`: the main thread reads it while this one frees it
        self._state: "Optional[State]" = None
        self._reserved_by: Any = None
        self._loads: dict[Any, str] = {}  # connection -> token of the state that it copies
        self._inboxes: dict[Any, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._gpu: "Optional[CudaGpu]" = None
        self._fault = ""
        self._chunk: Any = None  # pinned buffer on the way to disk
        threading.Thread(target=self._serve, daemon=True).start()

    # Main thread

    def write(self, token: str, path: str) -> None:
        """Write the state to a file. Raises CudaFault, OSError."""
        with self._lock:
            state, gpu = self._state, self._gpu
        if state is None or gpu is None or not state.sealed or state.token != token:
            raise CudaFault("its tensors are not on the GPU any more")
        gpu.attach()
        self._chunk = self._chunk or gpu.pinned(CHUNK)
        with open(path, "wb") as file:
            for at in range(0, state.size, CHUNK):
                size = min(CHUNK, state.size - at)
                gpu.read(state.address + at, self._chunk, size)
                file.write(memoryview(self._chunk)[:size])
        state.written = True

    @property
    def token(self) -> str:
        """Return the token of the state held here; empty without one."""
        with self._lock:
            return self._state.token if self._state is not None else ""

    def holds(self) -> bool:
        """Return whether a sealed state is here."""
        with self._lock:
            return self._state is not None and self._state.sealed

    def awaited(self) -> bool:
        """Return whether a sealed state is here that no trainer has taken."""
        with self._lock:
            return self._state is not None and self._state.sealed and not self._state.loaded

    def wanted(self) -> bool:
        """Return whether the next trainer may still come for it: one that saved elsewhere never has it `written`."""
        with self._lock:
            state = self._state
        if state is None or not state.written or state.loaded:
            return False
        return bool(self._loads) or time.monotonic() < state.since + LOADED_WITHIN_S

    # Server thread

    def _serve(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        try:
            self._gpu = CudaGpu()
            self._gpu.attach()
        except CudaFault as fault:
            self._fault = str(fault)
        except AttributeError as fault:  # a library of that name without these calls
            self._fault = f"the driver is too old ({fault})"
        self._report("ready")
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has hung up already
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._inboxes[connection] = b""
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(connection))

    def _hear(self, connection: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(MOST_LINE)
        *lines, rest = (self._inboxes[connection] + data).split(b"\n")
        self._inboxes[connection] = rest
        for line in lines:
            answer = self._answer(connection, line)
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(answer).encode() + b"\n")
        if not data or len(rest) > MOST_LINE:
            self._hang_up(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._inboxes[connection]
        self._loads.pop(connection, None)
        connection.close()
        if connection is self._reserved_by:
            self._free_unsealed()  # its trainer died in mid-copy

    def _answer(self, connection: socket.socket, line: bytes) -> "dict[str, Any]":
        try:
            ask = json.loads(line)
            verbs = {
                "reserve": self._reserve,
                "seal": self._seal,
                "alive": self._alive,
                "open": self._open,
                "done": self._done,
            }
            return verbs[ask["do"]](connection, ask)
        except CudaFault as fault:
            self._free_unsealed()
            return self._refused(str(fault))
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            return {"ok": False, "why": f"the request is not understood ({fault!r:.200})"}

    def _refused(self, why: str) -> "dict[str, Any]":
        self._report(f"refuses {why}")
        return {"ok": False, "why": why}

    def _reserve(self, connection: socket.socket, ask: "dict[str, Any]") -> "dict[str, Any]":
        """Reserve memory.

        `bytes`: of the state. `reserved`: GPU memory taken by the trainer. `uuid`: of the state's GPU.
        """
        size, now = int(ask["bytes"]), int(ask["reserved"])
        if self._gpu is None:
            return self._refused(self._fault)
        if ask["uuid"] != self._gpu.uuid:
            return self._refused("the state is on another GPU than the one that the job keeps")
        if self._state is not None:
            return {"ok": False, "why": "a state is held already"}
        count, later = self._gpus
        grows = max(0, now - size) * max(0, count - later) // later  # the same samples per step on fewer GPUs
        free, needed = self._gpu.free_bytes(), size + grows + MARGIN
        if free < needed:
            return self._refused(f"{needed >> 20} MiB would have to be free on the GPU, and {free >> 20} MiB are")
        state = State(self._gpu.allocate(size), size)
        with self._lock:
            self._state, self._reserved_by = state, connection
        return {"ok": True, "token": state.token, "handle": self._gpu.handle(state.address)}

    def _seal(self, _connection: socket.socket, ask: "dict[str, Any]") -> "dict[str, Any]":
        state = self._of(ask)
        if state is None:
            return {"ok": False, "why": "it was not reserved here"}
        state.sealed = True
        state.since = time.monotonic()
        self._report(f"holds {state.size}")
        return {"ok": True}

    def _alive(self, _connection: socket.socket, ask: "dict[str, Any]") -> "dict[str, Any]":
        state = self._of(ask)
        return {"ok": state is not None and state.sealed}

    def _open(self, connection: socket.socket, ask: "dict[str, Any]") -> "dict[str, Any]":
        state = self._of(ask)
        if state is None or self._gpu is None or not state.sealed:
            return {"ok": False, "why": "it is not here"}
        if ask["uuid"] != self._gpu.uuid:
            return {"ok": False, "why": "it is on another GPU"}
        self._loads[connection] = state.token
        return {"ok": True, "handle": self._gpu.handle(state.address)}

    def _done(self, connection: socket.socket, _ask: "dict[str, Any]") -> "dict[str, Any]":
        """Note that the next trainer has copied all of it."""
        state = self._state
        if state is not None and self._loads.get(connection) == state.token:
            state.loaded = True
        return {"ok": True}

    def _of(self, ask: "dict[str, Any]") -> "State | None":
        state = self._state
        return state if state is not None and state.token == ask["token"] else None

    def _free_unsealed(self) -> None:
        """Free a reservation that was never filled; a sealed state may be the only copy."""
        with self._lock:
            state = self._state
            if state is None or state.sealed:
                return
            self._state = None
        if self._gpu is not None:
            with contextlib.suppress(CudaFault):
                self._gpu.release(state.address)


def words_to(pipe: int) -> Any:
    """Return a function that writes one line to the shim's pipe and ignores a closed reader."""

    def report(words: str) -> None:
        with contextlib.suppress(OSError):
            os.write(pipe, words.encode("utf-8", "replace")[:1000] + b"\n")

    return report
