"""Ends a process that is to start again without work that the kernel does faster; it would take 1 s of each reshape.

Python ends as always: `finally`, `atexit` and finalizers of the script and its libraries run. Two things are left out:

* the teardown of CUDA and of PyTorch's statics, which the C library would call after that (0.6 s);
* the search of all objects of all modules for garbage (0.5 s with PyTorch), where it could only free memory.

Promises: the exit status stays what it is; what C code has printed and files have buffered is written out; where a
library, a tool or an object may do more than that so late, all is as without us. Called by `session`; the standard
library, Python 3.8.
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
ONLY_FREE = ("torch.", "multiprocessing.connection")  # modules whose finalizers free what the kernel frees, too
SUSPENDED = {types.GeneratorType: "gi", types.CoroutineType: "cr", types.AsyncGeneratorType: "ag"}  # -> of attributes
HANDLERS = {  # instructions of a `try` or a `with`, by the names of all versions of Python
    opcode.opmap[name]
    for name in ("SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH", "PUSH_EXC_INFO")
    if name in opcode.opmap
}
C_FILES = "_io"  # the module of files


def writes_late() -> bool:
    """True if something is loaded into this process that may write files when the C library ends it."""
    if any(os.environ.get(name) for name in TOOLS):
        return True
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return any(name in mapped for name in WRITE_LATE)


def leave_driver_as_it_is() -> None:
    """Let this process end quickly if it has used a GPU by PyTorch; else, and on any doubt, change nothing.

    The C library calls what was registered last first: our `_exit`, with the exit status, before CUDA's own handlers.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or writes_late():
        return
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # not every C library has them
        libc["on_exit"](libc["_exit"], None)
        libc["__cxa_atexit"](libc["fflush"], None, None)  # before it: all of stdio


def leave_garbage() -> None:
    """Let Python not search for garbage from now on, if all that this could do is to free memory.

    What nothing refers to any more is finalized as ever; only what refers to itself in a circle is not.
    """
    objects = gc.get_objects()
    if any(_does_more(one) for one in _with_finalizers(objects)):
        return
    gc.freeze()


def _with_finalizers(objects: list[Any]) -> list[Any]:
    """Return those whose kind has a finalizer. By kind first: there are 300,000 objects, and 1,000 kinds."""
    kinds = {kind for kind in set(map(type, objects)) if hasattr(kind, "__del__")}
    return [one for one in objects if type(one) in kinds]


def _does_more(one: Any) -> bool:
    """True if its finalizer may do more than to free memory. A file writes out what it has buffered, now."""
    kind = type(one)
    if kind in SUSPENDED:
        frame = getattr(one, f"{SUSPENDED[kind]}_frame")
        stands_inside = frame is not None and getattr(one, f"{SUSPENDED[kind]}_suspended", True)
        return stands_inside and (not HANDLERS or not HANDLERS.isdisjoint(frame.f_code.co_code[::2]))
    if kind.__module__ == C_FILES:
        with contextlib.suppress(OSError, ValueError):  # it is closed, or only read
            one.flush()
        return False
    return not kind.__module__.startswith(ONLY_FREE)
