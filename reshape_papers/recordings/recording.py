"""Records a model of the zoo as it trains alone: its loss against the work done, and what it demands of the machine.

Promise: work is CPU time of the training process, which other load on the machine hardly changes; its start, with all
imports, is not counted. Called by `reshape record`. Linux.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from reshape import shipped
from sidecar.output.progress import ProgressReader

POINTS = 40  # of a recorded curve
BLOCK = 512  # bytes, in which getrusage counts


class RecordingFailed(Exception):
    """The training did not run to its end, or printed no loss; the one argument is a sentence."""


class TrainingSample(NamedTuple):
    """Seconds by the clock and of CPU time until the training printed this value."""

    wall_s: float
    cpu_s: float
    value: float


@dataclass(frozen=True)
class MeasuredTraining:
    """What was measured, when and where; each kind of recording begins with it."""

    model: str
    framework: str
    options: list[str]
    date: str
    machine: str
    load: float  # of the machine as it began; 0 where it was alone


@dataclass(frozen=True)
class Recording(MeasuredTraining):
    """One training alone. `loss`: means over equal parts of the work, in their order."""

    iterations: int
    solo_s: float  # from the first value to the last, by the clock
    cpu_s: float  # CPU time of these seconds: the work
    memory: int  # bytes, most that were resident
    io: int  # bytes read from and written to disks
    loss: list[float]


@dataclass(frozen=True)
class SavingTimes(MeasuredTraining):
    """One training that was stopped several times; a value per stop in each list, in seconds.

    To save is from SIGTERM to the end of the process; to resume is from the start of the next one to its first step.
    """

    at: list[float] = field(default_factory=list)  # share of the training that was done
    save_s: list[float] = field(default_factory=list)
    resume_s: list[float] = field(default_factory=list)
    save_cpu_s: list[float] = field(default_factory=list)
    resume_cpu_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class ContentionRecording(MeasuredTraining):
    """Trainings of one model, alone and side by side on the same CPUs. Speeds are iterations per second of CPU time."""

    cpus: list[int]  # to which all were bound
    how: str
    alone: list[float]  # of each round
    beside: list[int]  # how many trained side by side
    speed: list[float]  # mean of each of them, by `beside`
    lost: list[float]  # share of the speed alone, likewise
    contention: float  # share of speed lost to each further training


def record(model: str, framework: str, python: str, options: Sequence[str]) -> Recording:
    """Train `model` to its end and measure it. Raises RecordingFailed."""
    script = shipped.folder("examples") / "zoo" / f"{framework}_zoo.py"
    load, reader = os.getloadavg()[0], ProgressReader()
    with tempfile.TemporaryDirectory() as folder:
        given = {"RESHAPE_CHECKPOINTS": folder, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
        argv, pipes = [python, str(script), model, *options], {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(argv, cwd=folder, env=os.environ | given, **pipes) as process:  # type: ignore[call-overload]
            try:
                samples, last = _watched(process, reader)
            except BaseException:
                process.kill()
                raise
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or len(samples) < 2:
        raise RecordingFailed(f"{framework} {model} did not train to its end. Its last output: {last}")
    first, end = samples[0], samples[-1]
    return Recording(
        model, framework, list(options), date.today().isoformat(), machine(), round(load, 1),
        reader.progress.iterations, round(end.wall_s - first.wall_s, 1), round(end.cpu_s - first.cpu_s, 2),
        used.ru_maxrss * 1024, (used.ru_inblock + used.ru_oublock) * BLOCK, curve(samples),
    )  # fmt: skip


def _watched(process: subprocess.Popen[bytes], reader: ProgressReader) -> tuple[list[TrainingSample], str]:
    """Read the output to its end; return a sample for each value, and the last of what it printed."""
    samples: list[TrainingSample] = []
    seen, last = 0, b""
    assert process.stdout is not None
    while chunk := os.read(process.stdout.fileno(), 1 << 16):
        now, last = time.monotonic(), (last + chunk)[-500:]
        reader.feed(chunk, now)
        found = reader.progress
        if found.value is not None and found.evaluations > seen:
            seen = found.evaluations
            samples.append(TrainingSample(now, cpu_s(process.pid), found.value))
    return samples, last.decode(errors="replace").strip()


def cpu_s(pid: int) -> float:
    """CPU time of the process so far, seconds; it lives on until it is waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def curve(samples: Sequence[TrainingSample], points: int = POINTS) -> list[float]:
    """Return the mean values of `points` equal parts of the work; a part without a value has that of the one before."""
    first, whole = samples[0].cpu_s, max(samples[-1].cpu_s - samples[0].cpu_s, 1e-9)
    parts: list[list[float]] = [[] for _ in range(points)]
    for one in samples:
        parts[min(int((one.cpu_s - first) / whole * points), points - 1)].append(one.value)
    means: list[float] = []
    for part in parts:
        means.append(statistics.fmean(part) if part else means[-1])
    return [float(f"{mean:.5g}") for mean in means]


def machine() -> str:
    """Its processor and cores, for people."""
    known = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    names = (line.partition(":")[2].strip() for line in known if line.startswith("model name"))
    return f"{os.cpu_count()} cores, {next(names, platform.machine())}"


def keep(recording: Recording | SavingTimes | ContentionRecording, file: Path) -> None:
    """Put the recording in the place of this model's older one in a JSON file, which is made where there is none."""
    rows = kept(file)
    this = recording.model, recording.framework
    rows = [row for row in rows if (row["model"], row["framework"]) != this] + [asdict(recording)]
    rows.sort(key=lambda row: (row["model"], row["framework"]))
    file.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def kept(file: Path) -> list[dict[str, Any]]:
    """Return the recordings of a file that can be written. OSError or ValueError, which say why it cannot be used."""
    is_new = not file.exists()
    with file.open("a+") as opened:
        opened.seek(0)
        rows = json.loads(opened.read() or "[]")
    if is_new:
        file.unlink()  # a training that fails leaves no empty file
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and {"model", "framework"} <= row.keys() for row in rows
    ):
        raise ValueError("it is no list of recordings")
    return rows
