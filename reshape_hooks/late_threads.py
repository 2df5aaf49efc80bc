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
from typing import NamedTuple

QUIET_S = 10.0  # without any work before the threads are left
LOOK_S = 0.5
BUSY_CPU = 0.1  # of a core
BUSY_BYTES = 1e6  # read and written in a second
BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def leave_waiting(code: int, warn: Callable[[str], object]) -> None:
    """Have this process, which ends now, end with `code` even if threads of the script wait for something for ever."""
    left = threading.Event()
    tidy = threading.Thread(target=_tidy_once_left, args=(left,), name="reshape-tidy", daemon=True)
    tidy.start()  # now: from 3.12 on Python starts no thread any more once it ends
    threading.Thread(
        target=_end_without_threads, args=(code, warn, left, tidy), name="reshape-end", daemon=True
    ).start()


def _end_without_threads(
    code: int, warn: Callable[[str], object], left: threading.Event, tidy: threading.Thread
) -> None:
    while not _python_ends():
        time.sleep(LOOK_S)
    worked_at = time.monotonic()
    before = _work_done()
    while kept_by := _kept_by():
        time.sleep(LOOK_S)
        now = _work_done()
        computes = now.cpu_s - before.cpu_s > BUSY_CPU * LOOK_S
        moves_data = now.moved_bytes - before.moved_bytes > BUSY_BYTES * LOOK_S
        if computes or moves_data or _waits_for_disk():
            worked_at = time.monotonic()
        before = now
        if time.monotonic() - worked_at > QUIET_S:
            warn(f"reshape: this training is saved; its process ends without threads that wait: {kept_by}")
            left.set()
            tidy.join(QUIET_S)  # what is called may wait for those threads, too
            os._exit(code)


def _tidy_once_left(left: threading.Event) -> None:
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


def _kept_by() -> str:
    """The names of the threads that Python waits for; empty if there are none."""
    executors = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())  # daemons in Python 3.8
    main = threading.main_thread()
    kept = [one for one in threading.enumerate() if one is not main and (not one.daemon or one in executors)]
    return ", ".join(one.name for one in kept)


class WorkDone(NamedTuple):
    """What this process has done so far."""

    cpu_s: float
    moved_bytes: float  # read and written


def _work_done() -> WorkDone:
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
        moved_bytes = sum(float(line.split()[1]) for line in lines[:2])
    except (OSError, ValueError, IndexError):  # where that may not be read, only computing counts
        moved_bytes = 0.0
    return WorkDone(time.process_time(), moved_bytes)


def _waits_for_disk() -> bool:
    """True if a thread waits for a disk, which may take long for much at once."""
    for stat in Path("/proc/self/task").glob("*/stat"):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "D":
                return True
        except (OSError, IndexError):
            continue
    return False
