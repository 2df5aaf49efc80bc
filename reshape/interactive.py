"""Runs a command in the user's terminal on GPUs that a job holds for it, on the machine of `reshape up`.

Promises: the job keeps its GPUs until the last process that has the command's lock has ended, also if `reshape run`
itself is killed; when the job is to end (its time is over, it was cancelled), the command is ended first. The job is
never resized and never started again. Called by `reshape/cli/run_verb.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reshape.client import Client, SubmittedJob
from reshape.client.job_output import has_ended

HOLD = """
import fcntl, os, signal, sys
lock, granted = sys.argv[1:]
def tell(*_):
    if os.path.exists(granted):
        os.unlink(granted)
signal.signal(signal.SIGTERM, tell)
file = open(lock)
with open(granted + ".new", "w") as told:
    told.write(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
os.rename(granted + ".new", granted)
fcntl.flock(file, fcntl.LOCK_EX)
"""  # the job's own process: says which GPUs it has, and ends with the command
LOOK_S = 0.2
ENDINGS = ((signal.SIGHUP, 2.0), (signal.SIGTERM, 13.0))
"""Signals that ask a command to end, and seconds that it may take: a shell ignores SIGTERM, and a command under `nohup`
SIGHUP. Together less than the grace that the job has to end."""


class NotGranted(Exception):
    """Raised if the job ended before it had its GPUs; the sentence says why."""


class HeldGpus:
    """GPUs that a job holds while the block runs."""

    def __init__(self, client: Client, doc: Mapping[str, Any], stem: str) -> None:
        """`doc`: of the job, without its command; `stem`: its name is this with a number, if the document has none."""
        self._client = client
        self._doc = doc
        self._stem = stem
        self.job: SubmittedJob | None = None

    def __enter__(self) -> HeldGpus:
        self._folder = tempfile.TemporaryDirectory(prefix="reshape-run-")
        self._granted = Path(self._folder.name, "granted")
        self._lock = Path(self._folder.name, "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        command = [sys.executable, "-c", HOLD, self._lock.name, str(self._granted)]
        doc = {**self._doc, "command": command, "code": self._folder.name, "elastic": False}
        self.job = self._client.submit_as(doc, self._stem)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()  # what the command left behind may still hold it: then the job keeps its GPUs
        if not self._granted.exists() and self.job is not None and not has_ended(self.job.refresh()):
            self.job.cancel()
        self._folder.cleanup()

    def gpus(self) -> str | None:
        """The value of CUDA_VISIBLE_DEVICES; None while the job waits. Raises `NotGranted` if it has ended."""
        if self._granted.exists():
            return self._granted.read_text("utf-8")
        job = self.job
        if job is not None and has_ended(job.refresh()):
            raise NotGranted(f"Job {job.id} is {job['state']}: {job['message'] or '; '.join(job['problems'])}.")
        return None

    def run(self, command: Sequence[str], gpus: str, over: Callable[[], None]) -> int:
        """Run the command in this terminal and return its exit code; call `over` when the job ends it."""
        variables = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus, "RESHAPE_JOB_ID": self.job.id if self.job else ""}
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command
        try:
            process = subprocess.Popen(command, env=variables, pass_fds=[self._lock.fileno()], preexec_fn=_hear_ctrl_c)
            while True:
                try:
                    return process.wait(LOOK_S)
                except subprocess.TimeoutExpired:
                    if not self._granted.exists():
                        over()
                        return _end(process)
        finally:
            signal.signal(signal.SIGINT, before)


def _hear_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(process: subprocess.Popen[bytes]) -> int:
    for number, seconds in ENDINGS:
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
    process.kill()
    return process.wait()
