"""Ends a process that has saved where only threads of its script keep it, which wait: Python would wait for ever.

Threads that work are waited for, as Python does: they may write what the script wants to keep. Then `atexit` runs and
files are flushed, as at any end. Called by `plain` and `adapters.session`; the standard library, Python 3.8.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

QUIET_S = 10.0  # without any work before the threads are left
LOOK_S = 0.5
BUSY_CPU = 0.1  # of a core
BUSY_BYTES = 1e6  # read and written in a second
BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def leave_waiting(code: int, warn: Callable[[str], object]) -> None:
    """Have this process, which ends now, end with `code` even if threads of the script wait for something for ever."""
    left = threading.Event()
    tidy = threading.Thread(target=_tidy, args=(left,), name="reshape-tidy", daemon=True)
    tidy.start()  # now: from 3.12 on Python starts no thread any more once it ends
    threading.Thread(target=_end, args=(code, warn, left, tidy), name="reshape-end", daemon=True).start()


def _end(code: int, warn: Callable[[str], object], left: threading.Event, tidy: threading.Thread) -> None:
    while not _python_ends():
        time.sleep(LOOK_S)
    worked_at, before = time.monotonic(), _work()
    while kept_by := _others():
        time.sleep(LOOK_S)
        now = _work()
        if _works() or now[0] - before[0] > BUSY_CPU * LOOK_S or now[1] - before[1] > BUSY_BYTES * LOOK_S:
            worked_at = time.monotonic()
        before = now
        if time.monotonic() - worked_at > QUIET_S:
            warn(f"reshape: this training is saved; its process ends without threads that wait: {kept_by}")
            left.set()
            tidy.join(QUIET_S)  # what is called may wait for those threads, too
            os._exit(code)


def _tidy(left: threading.Event) -> None:
    """Do what Python does behind its threads, once they are left, and others rely on."""
    left.wait()
    atexit._run_exitfuncs()
    for one in gc.get_objects():
        if isinstance(one, BUFFERED):
            with contextlib.suppress(Exception):  # a closed one, or a class of the script
                one.flush()
    ctypes.CDLL(None).fflush(None)


def _python_ends() -> bool:
    """True once the main thread has ended, or Python calls what waits for threads of executors."""
    return bool(getattr(threading, "_SHUTTING_DOWN", False)) or not threading.main_thread().is_alive()


def _others() -> str:
    """The names of the threads that Python waits for; empty if there are none."""
    executors = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())  # daemons in Python 3.8
    main = threading.main_thread()
    kept = [one for one in threading.enumerate() if one is not main and (not one.daemon or one in executors)]
    return ", ".join(one.name for one in kept)


def _work() -> tuple[float, float]:
    """Return CPU seconds of this process, and bytes that it has read and written."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
        return time.process_time(), sum(float(line.split()[1]) for line in lines[:2])
    except (OSError, ValueError, IndexError):
        return time.process_time(), 0.0


def _works() -> bool:
    """True if a thread waits for a disk, which may take long for much at once."""
    for stat in Path("/proc/self/task").glob("*/stat"):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "D":
                return True
        except (OSError, IndexError):
            continue
    return False
