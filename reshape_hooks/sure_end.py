"""Makes a process that has saved exit, even if its script would keep it alive: its GPUs are waited for.

Python waits for threads and processes that a script has started, and a script may wait in a `finally`, or catch the
`SystemExit` by which we end it (`raised.py`). What waits for `QUIET_S` without any work is abandoned, and so is an exit
that hangs for `STUCK_S`. Threads and processes that work are waited for, as Python does: they may write what the script
wants to keep. Then `atexit` runs and files are flushed, as at any exit. Called by `plain`, `keras_fit`, and the
adapters `session` and `elastic`; standard library, Python 3.8.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from reshape_hooks.raised import Raised, SavedAndStopped

QUIET_S = 10.0  # without any work before threads and processes of the script are abandoned
STUCK_S = 60.0  # without any work before a `finally` or a handler of the script is abandoned: it may wait for a network
LOOK_S = 0.5
BUSY_CPU = 0.1  # of a core
BUSY_BYTES = 1e6  # read and written per second
BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
TICKS = os.sysconf("SC_CLK_TCK")
SAVED = "reshape: this training is saved; its process "


_watched: list[SureEnd] = []  # at most one


def see_through(code: int, warn: Callable[[str], object]) -> SureEnd:
    """Make this process, which has saved and exits, end with `code` whatever its script waits for."""
    if not _watched:
        _watched.append(SureEnd(code, warn))
    return _watched[0]


class SureEnd:
    """The threads that supervise one exit."""

    def __init__(self, code: int, warn: Callable[[str], object]) -> None:
        self.code = code
        self.warn = warn
        self.asked: dict[int, float] = {}  # processes that were sent SIGTERM, and when
        self.exits = False  # Python has begun to run `atexit` functions
        atexit.register(self._note_exit)
        self.left = threading.Event()
        self.tidy = threading.Thread(target=self._tidy_once_left, name="reshape-tidy", daemon=True)
        self.tidy.start()  # now: from 3.12 on, Python starts no threads during shutdown
        threading.Thread(target=self._watch_end, name="reshape-end", daemon=True).start()

    def to_raise(self) -> SystemExit:
        """Return what ends this process, for the caller to raise at once, in the main thread."""
        Raised(self.code, self.warn).follow(sys._getframe(1))
        return SavedAndStopped(self.code)

    def _watch_end(self) -> None:
        worked_at = time.monotonic()
        before = _work_done()
        while True:
            time.sleep(LOOK_S)
            _show_life()
            now = _work_done()
            if _has_worked(before, now):
                worked_at = time.monotonic()
            before = now
            quiet_s = time.monotonic() - worked_at
            if quiet_s > QUIET_S and _python_ends() and _processes_waited_for():
                self._end_processes()  # then Python's shutdown proceeds as usual
            elif why := self._reason_to_end(quiet_s):
                self._end(why)

    def _reason_to_end(self, quiet_s: float) -> str:
        """Return why we must end this process after so long without any work; empty if we need not."""
        if _python_ends() and quiet_s > QUIET_S and (kept_by := _threads_waited_for()):
            return f"ends without what only waits: {kept_by}"
        if quiet_s > STUCK_S:
            return f"ends, because it has only waited for {STUCK_S:.0f} s in {_main_stands_in()}"
        return ""

    def _end(self, why: str) -> None:
        self.warn(SAVED + why)
        flush_files()  # before Python may exit concurrently
        self._end_processes()
        self.left.set()
        self.tidy.join(QUIET_S)  # what it calls may also wait for what we abandon
        flush_files()
        os._exit(1 if hasattr(sys, "last_value") else self.code)  # a traceback was printed

    def _end_processes(self) -> None:
        """End the processes that Python would wait for at exit; SIGKILL for those that survive SIGTERM for QUIET_S."""
        for one in _processes_waited_for():
            if one.pid not in self.asked:
                self.asked[one.pid] = time.monotonic()
                self.warn(f"{SAVED}ends without what only waits: {one.name}")
            late = time.monotonic() > self.asked[one.pid] + QUIET_S
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL if late else signal.SIGTERM)

    def _note_exit(self) -> None:
        self.exits = True

    def _tidy_once_left(self) -> None:
        """Do what Python does after its threads, once they are abandoned, since others rely on it."""
        self.left.wait()
        if not self.exits:  # else it has called some, and hangs in one
            with contextlib.suppress(BaseException):  # of the script, already reported
                atexit._run_exitfuncs()


def fail_at_exit() -> None:
    """Make this process exit with 1, after everything else at its exit: one of its threads could not do its work."""
    python: Any = threading
    wait_for_threads = python._shutdown  # which Python calls first at shutdown

    def end_failed() -> None:
        wait_for_threads()
        with contextlib.suppress(BaseException):  # of the script, already reported
            atexit._run_exitfuncs()
        flush_files()
        os._exit(1)

    python._shutdown = end_failed


def flush_files() -> None:
    """Flush what Python and C files have buffered."""
    # `isinstance` would query a proxy's target. No file is held here: Python flushes it when freed.
    files = [weakref.ref(one) for one in gc.get_objects() if issubclass(type(one), BUFFERED)]
    for file in files:
        with contextlib.suppress(Exception):  # closed, a class of the script, or gone
            file().flush()  # type: ignore[union-attr]
    ctypes.CDLL(None).fflush(None)


def _show_life() -> None:
    """Show the shim, by this file's mtime, that this exit is supervised here: it kills what hangs unsupervised."""
    with contextlib.suppress(OSError):
        os.utime(os.environ.get("RESHAPE_ANNOUNCE", ""))


def _python_ends() -> bool:
    """Return whether the main thread has ended, or Python waits for threads of executors."""
    return bool(getattr(threading, "_SHUTTING_DOWN", False)) or not threading.main_thread().is_alive()


def _threads_waited_for() -> str:
    """Return the names of the threads that Python waits for at exit; empty if there are none."""
    executors = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())  # daemons in Python 3.8
    main = threading.main_thread()
    kept = [one for one in threading.enumerate() if one is not main and (not one.daemon or one in executors)]
    return ", ".join(one.name for one in kept)


def _processes_waited_for() -> list[Any]:
    """Return the multiprocessing processes that Python waits for at exit."""
    children = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
    return [one for one in list(children) if not one.daemon and _lives(one.pid)]


def _lives(pid: int) -> bool:
    """Return whether it is alive, and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:1] not in ([b"Z"], [b"X"])
    except OSError:
        return False


def _main_stands_in() -> str:
    """Return where the main thread is, such as `wait (threading.py:355)`."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "its end"
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


class WorkDone(NamedTuple):
    """Work of one process so far."""

    cpu_s: float
    queued_s: float  # that its threads have waited for a CPU: on a full machine they get little
    moved_bytes: float  # read and written


def _work_done() -> dict[int, WorkDone]:
    """Return the work of this process and its descendants by pid, without our own polling, which can be slow."""
    found = {pid: WorkDone(cpu_s, _queued_s(str(pid)), _moved_bytes(str(pid))) for pid, cpu_s in _descendants()}
    ours = WorkDone(
        time.process_time() - time.thread_time(),
        _queued_s("self", but_for=threading.get_native_id()),
        _moved_bytes("self") - _moved_bytes("thread-self"),
    )
    return {**found, os.getpid(): ours}


def _has_worked(before: dict[int, WorkDone], now: dict[int, WorkDone]) -> bool:
    """Return whether work was done between two polls, LOOK_S apart, or a disk or a network is waited for."""
    cpu_s = moved_bytes = 0.0
    for pid, done in now.items():
        earlier = before.get(pid, WorkDone(0.0, 0.0, 0.0))
        cpu_s += done.cpu_s - earlier.cpu_s
        cpu_s += max(0.0, done.queued_s - earlier.queued_s)  # less than before once a thread has ended
        moved_bytes += done.moved_bytes - earlier.moved_bytes
    busy = cpu_s > BUSY_CPU * LOOK_S or moved_bytes > BUSY_BYTES * LOOK_S
    return busy or any(map(_waits_for_disk, now)) or _any_sends(now) or _any_trains(now)


def _descendants() -> Iterator[tuple[int, float]]:
    """Yield pid and CPU seconds of all descendants of this process."""
    below: dict[int, list[tuple[int, float]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_bytes().rpartition(b")")[2].split()
            cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
            below.setdefault(int(fields[1]), []).append((int(stat.parent.name), cpu_s))
    todo = [os.getpid()]
    while todo:
        for pid, cpu_s in below.get(todo.pop(), ()):
            yield pid, cpu_s
            todo.append(pid)


def _queued_s(process: str, but_for: int = 0) -> float:
    """Return how long a process's living threads have waited for a CPU, except one."""
    found = 0
    for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            found += int(file.read_text().split()[1]) if file.parent.name != str(but_for) else 0
    return found / 1e9


def _moved_bytes(process: str) -> float:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
        return sum(float(line.split()[1]) for line in lines[:2])
    except (OSError, ValueError, IndexError):  # where that is not readable, only computing counts
        return 0.0


def _waits_for_disk(pid: int) -> bool:
    """Return whether one of its threads waits for a disk, which may take long for large amounts."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "D":
                return True
        except (OSError, IndexError):
            continue
    return False


def _any_trains(pids: Iterable[int]) -> bool:
    """Return whether one of these trains itself: it has announced that it saves when asked, however long that takes."""
    announced = b""
    with contextlib.suppress(OSError):
        announced = Path(os.environ.get("RESHAPE_ANNOUNCE", "")).read_bytes()
    return any(b" %d@" % pid in announced for pid in pids if pid != os.getpid())


def _any_sends(pids: Iterable[int]) -> bool:
    """Return whether one of these has unacknowledged data in flight, as in an upload, which takes hardly any CPU."""
    sending = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[4].partition(":")[0], 16):  # bytes in its send queue
                    sending.add(int(fields[9]))
    if not sending:
        return False
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                if file.is_socket() and file.stat().st_ino in sending:
                    return True
    return False
