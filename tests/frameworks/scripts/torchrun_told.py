"""Runs torchrun, which is told to stop by SIGTERM while it is at the place that the first argument names."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.metrics import api as metrics

PLACE, *ARGUMENTS = sys.argv[1:]
STARTED = Path("started")
told = []


def tell(place: str) -> None:
    """Send the signal, once its process trains."""
    if place == PLACE and STARTED.exists() and not told:
        told.append(place)
        os.kill(os.getpid(), signal.SIGTERM)


class Lock:
    """The lock that subprocess holds while it waits for a process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def acquire(self, *given: object) -> bool:
        got = self.lock.acquire(*given)
        tell("lock")
        return got

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class Clock:
    """The module time, of which torchrun asks how long it has looked."""

    def time(self) -> float:
        tell("clock")
        return time.time()

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


class Locks:
    """The module threading, as subprocess sees it."""

    Lock = Lock

    def __getattr__(self, name: str) -> object:
        return getattr(threading, name)


subprocess.threading = Locks()
metrics.time = Clock()
run.main(ARGUMENTS)
