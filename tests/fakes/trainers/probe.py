#!/usr/bin/env python3
"""Announces itself, writes down all that it can see of its process, waits for SIGTERM, and ends in the way asked for.

Imports NumPy under a variable that it sets itself. `ends`: one way for each generation, `probe-N.json`: what it saw.
"""

import atexit
import ctypes
import gc
import inspect
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time

SEEN_FIRST = sorted(sys.modules)  # before NumPy
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy  # noqa: E402


def child(queue):
    queue.put([os.path.basename(sys.modules["__main__"].__file__), sys.argv[1:], int(numpy.arange(3).sum())])


def children():
    said = []
    for how in ("fork", "spawn"):
        context = multiprocessing.get_context(how)
        queue = context.Queue()
        one = context.Process(target=child, args=(queue,))
        one.start()
        said.append(queue.get())
        one.join()
        said.append(one.exitcode)
    return said


def descriptors():
    links = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            links[number] = os.readlink(f"/proc/self/fd/{number}").partition(":[")[0]
        except OSError:  # that of this listing
            pass
    return links


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def seen():
    here = sys.modules["__main__"]
    spec = here.__spec__
    death = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)
    with open("/proc/self/cmdline") as file:
        cmdline = file.read().split("\0")
    with open("/proc/self/oom_score_adj") as file:
        score = file.read()
    with open("/proc/self/status") as file:
        masks = [line for line in file if line.startswith(("SigBlk", "SigIgn", "SigCgt", "Umask"))]
    return {
        "argv": sys.argv, "cmdline": cmdline, "orig_argv": getattr(sys, "orig_argv", None), "flags": str(sys.flags),
        "path": sys.path, "path0": sys.path[0], "options": [sys.warnoptions, sys._xoptions], "modules": SEEN_FIRST,
        "main": [here.__name__, here.__file__, here.__doc__, here.__package__, spec and [spec.name, spec.origin]],
        "loader": [type(here.__loader__).__name__, sorted(vars(here))[:12]], "cwd": os.getcwd(), "umask": masks,
        "environ": dict(os.environ),
        "environ_of_children": python("import os; os.environ.pop('RESHAPE_WARM'); print(dict(os.environ))"),
        "signals": {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()}, "descriptors": descriptors(),
        "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], "death": death.value, "score": score,
        "timer": signal.getitimer(signal.ITIMER_REAL), "nice": os.nice(0), "policy": os.sched_getscheduler(0),
        "limits": [resource.getrlimit(number) for number in range(16)],
        "streams": [[one.name, one.encoding, one.line_buffering, one.write_through, one.isatty(), one.fileno()]
                    for one in (sys.stdin, sys.stdout, sys.stderr)], "stdin": sys.stdin.read(),
        "threads": threading.active_count(), "main_thread": threading.current_thread() is threading.main_thread(),
        "stack": len(inspect.stack()), "gc": [gc.get_threshold(), gc.isenabled()],
        "numpy": [numpy.__spec__.origin, type(numpy.__loader__).__name__, numpy is sys.modules["numpy"]],
        "children": children(), "hash": hash("") == 0, "executable": [sys.executable, sys.prefix, sys.base_prefix],
    }  # fmt: skip


def main():
    number = os.environ["RESHAPE_GENERATION"]
    found = seen()
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    atexit.register(print, "at its end", flush=True)
    with open(f"probe-{number}.new", "w") as file:
        json.dump(found, file)
    os.rename(f"probe-{number}.new", f"probe-{number}.json")
    with open(os.environ["RESHAPE_ANNOUNCE"], "w") as file:
        file.write("SIGUSR1")
    print("generation", number, flush=True)
    while not asked:
        time.sleep(0.01)
    how = sys.argv[1:][int(number) - 1]
    print("ends by", how, file=sys.stderr)
    if how == "raise":
        raise ValueError("as asked")
    if how == "signal":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    sys.exit({"none": None, "text": "ended in words"}[how] if how in ("none", "text") else int(how))


if __name__ == "__main__":
    main()
