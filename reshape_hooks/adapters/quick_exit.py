"""Ends a process that will be restarted without cleanup that the kernel does faster; it would add 1 s to each reshape.

Python ends as always: `finally`, `atexit` and finalizers of the script and its libraries run. Two things are skipped:
- the teardown of CUDA and of PyTorch's statics, which the C library would run afterwards (0.6 s);
- garbage collection over all modules (0.5 s with PyTorch), where it could only free memory.

Promises: the exit status is unchanged; what C code has printed and files have buffered is written; if a library, a tool
or an object may do more that late, everything is as without us. Called by `session`; standard library, Python 3.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import opcode
import os
import sys
import types
from pathlib import Path
from typing import Any

WRITE_LATE = ("libhdf5", "libnetcdf", "libROOT", "libCore.so", "libprofiler", "libasan", "libgcov")
TOOLS = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "LLVM_PROFILE_FILE")
ONLY_FREE = ("torch.", "multiprocessing.connection")  # modules whose finalizers free what the kernel frees anyway
SUSPENDED = {types.GeneratorType: "gi", types.CoroutineType: "cr", types.AsyncGeneratorType: "ag"}  # -> of attributes
HANDLERS = {  # instructions of a `try` or a `with`, by their names in all versions of Python
    opcode.opmap[name]
    for name in ("SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH", "PUSH_EXC_INFO")
    if name in opcode.opmap
}
C_FILES = "_io"  # the module of file objects


def writes_late() -> bool:
    """Return whether something loaded into this process may write files when the C library ends it."""
    if any(os.environ.get(name) for name in TOOLS):
        return True
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return any(name in mapped for name in WRITE_LATE)


def leave_driver_as_it_is() -> None:
    """Let this process end quickly if it used a GPU through PyTorch; otherwise, or in any doubt, change nothing.

    The C library runs exit handlers last-in first-out: our `_exit`, with the exit status, before CUDA's own handlers.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or writes_late():
        return
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # not every C library has them
        libc["on_exit"](libc["_exit"], None)
        libc["__cxa_atexit"](libc["fflush"], None, None)  # runs before it: all of stdio


def leave_garbage() -> None:
    """Disable garbage collection from now on, if all it could do is free memory.

    What nothing refers to any more is still finalized; only reference cycles are not.
    """
    objects = gc.get_objects()
    if any(_does_more(one) for one in _with_finalizers(objects)):
        return
    gc.freeze()


def _with_finalizers(objects: list[Any]) -> list[Any]:
    """Return those whose type has a finalizer. Filtered by type first: there are 300,000 objects, and 1,000 types."""
    kinds = {kind for kind in set(map(type, objects)) if hasattr(kind, "__del__")}
    return [one for one in objects if type(one) in kinds]


def _does_more(one: Any) -> bool:
    """Return whether its finalizer may do more than free memory. A file is flushed now."""
    kind = type(one)
    if kind in SUSPENDED:
        frame = getattr(one, f"{SUSPENDED[kind]}_frame")
        stands_inside = frame is not None and getattr(one, f"{SUSPENDED[kind]}_suspended", True)
        return stands_inside and (not HANDLERS or not HANDLERS.isdisjoint(frame.f_code.co_code[::2]))
    if kind.__module__ == C_FILES:
        with contextlib.suppress(OSError, ValueError):  # closed, or read-only
            one.flush()
        return False
    return not kind.__module__.startswith(ONLY_FREE)
