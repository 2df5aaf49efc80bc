"""Ends a process that trained on a GPU without taking the driver down first, which takes 0.6 s of each reshape.

Python ends as always: `finally`, `atexit` and finalizers of the script and its libraries run. Only what the C library
calls after that is left out, the teardown of CUDA and of PyTorch's statics: the kernel frees a GPU's memory faster.
Promises: the exit status stays what it is; what C code has printed is written out; where a library or a tool is loaded
that may write its files that late, all is as without us. Called by `session`; the standard library, Python 3.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

WRITE_LATE = ("libhdf5", "libnetcdf", "libROOT", "libCore.so", "libprofiler", "libasan", "libgcov")
TOOLS = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "LLVM_PROFILE_FILE")


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
