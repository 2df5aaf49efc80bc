"""Measures how much speed trainings of the zoo lose beside each other: the contention of SpeCon's and FlowCon's model.

Promise: all trainings are bound to the same CPUs, and speed is iterations per second of CPU time, so that other load on
the machine hardly changes it; they take turns within seconds, alone, two, three, while the others are stopped, so that
what changes slowly comes to the same for all. Starts, with all imports, do not count. Called by
`reshape record --beside`. Linux.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import IO

from reshape import shipped
from reshape_papers.recordings.recording import ContentionRecording, RecordingFailed, cpu_s, machine
from sidecar.output.progress import ProgressReader

ROUNDS = 4
MEASURED_CPU_S = 1.0  # of each training, in each round with so many beside it
WARMING_STEPS = 20
EPOCHS = "1000000"  # nobody ends while others are measured
HOW = (
    "iterations per second of CPU time, all trainings bound to the same CPUs, in turns of seconds; lost is the share "
    "by which each is slower than one alone, the contention the share lost to each further one"
)
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def measure(
    model: str, framework: str, python: str, options: Sequence[str], most: int, cpus: Sequence[int]
) -> ContentionRecording:
    """Train one `model` alone and two to `most` side by side on `cpus`, in turns. Raises RecordingFailed."""
    load = round(os.getloadavg()[0], 1)
    script = shipped.folder("examples") / "zoo" / f"{framework}_zoo.py"
    argv = [python, str(script), model, "--epochs", EPOCHS, *options]
    counts = list(range(2, most + 1))
    rounds = list(_measured_rounds(argv, most, cpus))
    lost = [1.0 - statistics.fmean(speeds[count] / speeds[1] for speeds in rounds) for count in counts]
    return ContentionRecording(
        model=model,
        framework=framework,
        options=list(options),
        date=date.today().isoformat(),
        machine=machine(),
        load=load,
        cpus=list(cpus),
        how=HOW,
        alone=[round(speeds[1], 2) for speeds in rounds],
        beside=counts,
        speed=[round(statistics.fmean(speeds[count] for speeds in rounds), 2) for count in counts],
        lost=[round(share, 4) for share in lost],
        contention=round(per_job(counts, lost), 4),
    )


def per_job(counts: Sequence[int], lost: Sequence[float]) -> float:
    """Return the share c of speed lost to each further job: (1 - c) ** (count - 1) fits best what is left of it."""
    further = [count - 1 for count in counts]
    logarithms = [math.log(1.0 - share) for share in lost]
    slope = math.fsum(n * log for n, log in zip(further, logarithms, strict=True)) / math.fsum(n * n for n in further)
    return 1.0 - math.exp(slope)


class _Beside:
    """One of the trainings that run side by side."""

    def __init__(self, argv: Sequence[str], folder: str, cpus: Sequence[int]) -> None:
        self.argv = argv
        threads = dict.fromkeys(THREADS, str(len(cpus)))
        given = {"RESHAPE_CHECKPOINTS": folder, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
        with _bound_to(cpus):
            self.process = subprocess.Popen(
                argv, cwd=folder, env=os.environ | given | threads, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        self.reader = ProgressReader()
        self.last = b""  # of its output
        self.time = 0.0  # CPU seconds that it has used
        self.steps = 0
        self.began = (0, 0.0)  # iterations and CPU time where measuring began

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def read(self) -> None:
        """Take what it has printed. Raises RecordingFailed at the end of its output."""
        chunk = os.read(self.output.fileno(), 1 << 16)
        self.last = (self.last + chunk)[-500:]
        if not chunk:
            said = self.last.decode(errors="replace").strip()
            raise RecordingFailed(f"{' '.join(self.argv)} did not train on. Its last output: {said}")
        self.time = cpu_s(self.process.pid)
        self.reader.feed(chunk, self.time)
        self.steps = self.reader.progress.iterations

    def begin(self) -> None:
        self.began = self.steps, self.time

    @property
    def used_s(self) -> float:
        return self.time - self.began[1]

    @property
    def speed(self) -> float:
        """Return its iterations per second of CPU time since `begin`."""
        return (self.steps - self.began[0]) / self.used_s


@contextlib.contextmanager
def _bound_to(cpus: Sequence[int]) -> Iterator[None]:
    """Let processes that begin in the body, and all of theirs, run on these CPUs only."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _measured_rounds(argv: Sequence[str], most: int, cpus: Sequence[int]) -> Iterator[dict[int, float]]:
    """Yield, of each round, the mean speed of one, of two to `most` trainings side by side; the others are stopped.

    All have begun before the first round; each round begins with another of them.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as started:
        trainings = []
        for number in range(most):
            of_its_own = Path(folder) / str(number)
            of_its_own.mkdir()
            trainings.append(_Beside(argv, str(of_its_own), cpus))
            started.callback(_end_training, trainings[-1].process)
        _read_until(trainings, lambda one: one.steps > WARMING_STEPS)
        for number in range(ROUNDS):
            turned = trainings[number % most :] + trainings[: number % most]
            yield {count: _mean_speed(turned[:count], turned[count:]) for count in range(1, most + 1)}


def _mean_speed(running: Sequence[_Beside], stopped: Sequence[_Beside]) -> float:
    """Return the mean iterations per second of CPU time of those that run, while the others are stopped."""
    for one in stopped:
        one.process.send_signal(signal.SIGSTOP)
    for one in running:
        one.process.send_signal(signal.SIGCONT)
        one.begin()
    _read_until(running, lambda one: one.steps > one.began[0] + WARMING_STEPS)  # also what was printed before
    for one in running:
        one.begin()
    _read_until(running, lambda one: one.used_s >= MEASURED_CPU_S)
    return statistics.fmean(one.speed for one in running)


def _end_training(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process:  # closes its output and waits
        pass


def _read_until(trainings: Sequence[_Beside], reached: Callable[[_Beside], bool]) -> None:
    """Read what all print until each has reached something."""
    with selectors.DefaultSelector() as ready:
        for one in trainings:
            ready.register(one.output, selectors.EVENT_READ, one)
        while not all(map(reached, trainings)):
            for key, _ in ready.select():
                key.data.read()
