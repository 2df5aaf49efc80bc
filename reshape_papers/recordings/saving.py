"""Measures what stopping a training of the zoo and starting it again takes, at several shares of its length.

Promise: each stop is SIGTERM to an ordinary process with our hooks, without a sidecar, and each start is cold: nothing
waits with its imports done. CPU time is what the processes used, which other load on the machine hardly changes. Called
by `reshape record --saving`. Linux.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import IO, NamedTuple

from reshape import shipped
from reshape_hooks import plain
from reshape_papers.recordings.recording import RecordingFailed, SavingTimes, cpu_s, machine
from sidecar.output.progress import ProgressReader

STARTUP = Path(plain.__file__).parent / "startup"  # which the shim puts on PYTHONPATH
SHARES = tuple(tenths / 10 for tenths in range(1, 10))
"""Of the training, at which it is stopped, as in the paper's Figure 2."""


class ProcessMoment(NamedTuple):
    """Seconds by the clock and of CPU time since the process began."""

    wall_s: float
    cpu_s: float


class _Process(NamedTuple):
    """What one process of the training did; None where it did not come to that."""

    first_step: ProcessMoment | None
    asked: ProcessMoment | None
    ended: ProcessMoment
    code: int
    last: str


def measure(model: str, framework: str, python: str, options: Sequence[str], stops: Sequence[float]) -> SavingTimes:
    """Train `model` to its end, stopped at each of `stops`, shares in rising order. Raises RecordingFailed."""
    found = SavingTimes(
        model, framework, list(options), date.today().isoformat(), machine(), round(os.getloadavg()[0], 1)
    )
    script = shipped.folder("examples") / "zoo" / f"{framework}_zoo.py"
    reader, argv = ProgressReader(), [python, str(script), model, *options]
    with tempfile.TemporaryDirectory() as folder:
        for number, stop in enumerate([*stops, None], start=1):
            ran = _run(argv, Path(folder), number, reader, stop)
            if ran.first_step is None or ran.code != (0 if stop is None else plain.STOPPED):
                raise RecordingFailed(
                    f"{framework} {model} was not stopped and resumed as asked (its process {number} ended with "
                    f"{ran.code}); a longer training has more steps to be stopped at. Its last output: {ran.last}"
                )
            _add(found, ran, number, reader)
    return found


def _add(found: SavingTimes, ran: _Process, number: int, reader: ProgressReader) -> None:
    assert ran.first_step is not None
    if number > 1:
        found.resume_s.append(round(ran.first_step.wall_s, 3))
        found.resume_cpu_s.append(round(ran.first_step.cpu_s, 2))
    if ran.asked is not None:
        found.at.append(round(reader.progress.iterations / (reader.progress.total_iterations or 1), 3))
        found.save_s.append(round(ran.ended.wall_s - ran.asked.wall_s, 3))
        found.save_cpu_s.append(round(ran.ended.cpu_s - ran.asked.cpu_s, 2))


def _run(argv: Sequence[str], folder: Path, number: int, reader: ProgressReader, stop: float | None) -> _Process:
    """Run one process of the training, which is asked to stop at that share of it; None: until it ends."""
    given = {
        "PYTHONPATH": str(STARTUP), "RESHAPE_JOB_ID": "stopped", "RESHAPE_GENERATION": str(number),
        "RESHAPE_CHECKPOINTS": str(folder / "saved"), "RESHAPE_ANNOUNCE": str(folder / "announce"),
        "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    began = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    reader.new_output(number)
    reader.new_generation(began)
    with subprocess.Popen(argv, cwd=folder, env=os.environ | given, **pipes) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout is not None
            first_step, asked, last = _watched(process, process.stdout, reader, stop, began)
        except BaseException:
            process.kill()
            raise
        _, status, used = os.wait4(process.pid, 0)
        ended = ProcessMoment(time.monotonic() - began, used.ru_utime + used.ru_stime)
        process.returncode = os.waitstatus_to_exitcode(status)
    return _Process(first_step, asked, ended, process.returncode, last)


def _watched(
    process: subprocess.Popen[bytes], output: IO[bytes], reader: ProgressReader, stop: float | None, began: float
) -> tuple[ProcessMoment | None, ProcessMoment | None, str]:
    """Read the output to its end; return when it did its first step, when it was asked to stop, and its last output."""
    first_step: ProcessMoment | None = None
    asked: ProcessMoment | None = None
    last = b""
    while chunk := os.read(output.fileno(), 1 << 16):
        now, last = time.monotonic(), (last + chunk)[-500:]
        reader.feed(chunk, now)
        here = ProcessMoment(now - began, cpu_s(process.pid))
        progress = reader.progress
        if first_step is None and progress.first_step_at is not None:
            first_step = here
        total = progress.total_iterations
        if first_step and stop is not None and asked is None and total and progress.iterations >= stop * total:
            asked = here
            os.kill(process.pid, signal.SIGTERM)  # not send_signal, which reaps one that has just ended
    return first_step, asked, last.decode(errors="replace").strip()
