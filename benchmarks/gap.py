"""R1: how long training stands still when a job is reshaped in place, beside a plain kill and re-exec of the script.

Both sides run the very same script with the same arguments, pace and kind of checkpoint folder, at the same time on
this machine, and take turns. In place: an operator's request to the real coordinator, real sidecar and shim. Plain:
SIGTERM, wait, start it again with other GPUs, at once: no re-exec can be faster than that. A gap runs from the last
step of the old shape to the first of the new, on both sides by the `time=` that the trainer itself printed.

Before anything is timed, both sides must end with the same result as a run that was never interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from benchmarks.cluster import WITHIN_S, Cluster, running
from benchmarks.result import Result, Row, Table, WrongAnswer
from coordinator.stores.opening import open_store
from launcher.local_spec import INHERITED
from reshape import shipped

PACE = {1: 0.02, 2: 0.0125}  # seconds per iteration: short, since a gap holds the rest of one step and one whole step
JOB_TYPE = "gap"
ENDLESS = 10_000_000  # iterations
SETTLED = 25  # steps between two gaps, so that nothing of the last one is still being written
RESULT = {"numpy": "weights", "keras": "val_loss"}  # what the script prints at its end
FLOOR = 0.35
STAGES = ("signal", "checkpoint", "exit", "spawn", "first step")

BEGIN = re.compile(r"^job=\S+ gpus=(\d+) begins_at=(\d+) ")
STEP = re.compile(r"^step=(\d+) .*\btime=([0-9.]+)$")


@dataclass
class GpuShape:
    """The steps that one trainer process printed: (step, CLOCK_BOOTTIME seconds) of each."""

    gpus: int
    begins_at: int
    steps: list[tuple[int, float]] = field(default_factory=list)


class MeasuredSide(Protocol):
    """A training that can be given another number of GPUs."""

    def reshape(self, gpus: int) -> dict[str, float]:
        """Returns once the new shape has trained; stages in seconds where they are known."""
        ...

    def output(self) -> str: ...


class InPlace:
    """A job of the real coordinator, reshaped by an operator's requests."""

    def __init__(self, cluster: Cluster, job: str, trainer: str, iterations: int) -> None:
        self._cluster, self._job = cluster, job
        doc = {"job_id": job, "job_type": JOB_TYPE, "command": command(trainer, iterations), "iterations": iterations}
        doc["elastic"] = True  # it is stopped as soon as it trains
        self.began = cluster.submit({**doc, "optional_num_gpus": sorted(PACE)})

    def wait_started(self) -> None:
        self._cluster.until("started", self._job, self.began)

    def reshape(self, gpus: int) -> dict[str, float]:
        before = self._cluster.api.last_event()
        self._cluster.api.request(self._job, gpus, None)
        stages: dict[str, float] = self._cluster.until("reshaped", self._job, before)["stages_s"]
        return stages

    def wait_ended(self) -> None:
        self._cluster.until("completed", self._job, self.began)

    def output(self) -> str:
        return self._cluster.output(self._job)


class PlainRestart:
    """The same script as a plain process: killed, and started again."""

    def __init__(self, folder: Path, trainer: str, iterations: int) -> None:
        self._folder, self._command = folder, command(trainer, iterations)
        self._folder.mkdir()
        self._generation, self._lines = 0, list[str]()
        self._start(max(PACE))

    def _start(self, gpus: int) -> None:
        self._generation += 1
        self._stepped = threading.Event()  # a new one: the reader of the old process may still set its own
        self._process = subprocess.Popen(
            self._command, env=environment(self._folder, gpus, self._generation), cwd=self._folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self._process, self._stepped), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str], stepped: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)
            if line.startswith("step="):
                stepped.set()

    def reshape(self, gpus: int) -> dict[str, float]:
        self._process.send_signal(signal.SIGTERM)
        _wait(self._process)
        old = self._reader
        self._start(gpus)
        old.join()
        if not self._stepped.wait(WITHIN_S):
            raise WrongAnswer(f"the script did not train again within {WITHIN_S:.0f} s:\n{self.output()[-1000:]}")
        return {}

    def wait_ended(self) -> None:
        if code := self._process.wait(WITHIN_S):
            raise WrongAnswer(f"the script ended with code {code}:\n{self.output()[-1000:]}")
        self._reader.join()

    def output(self) -> str:
        return "".join(self._lines)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _wait(process: subprocess.Popen[str]) -> None:
    """Wait until it has ended. Not `wait` with a timeout: that sleeps up to 50 ms between looks."""
    ended = os.pidfd_open(process.pid)
    try:
        if not select.select([ended], [], [], WITHIN_S)[0]:
            raise WrongAnswer(f"the script did not end within {WITHIN_S:.0f} s of SIGTERM")
    finally:
        os.close(ended)
    process.wait()


def command(trainer: str, iterations: int) -> list[str]:
    script = shipped.folder("examples") / f"{trainer}_digits.py"
    return [sys.executable, str(script), "--iterations", str(iterations), "--save-every", "0"]


def environment(folder: Path, gpus: int, generation: int) -> dict[str, str]:
    """Return the environment variables that the shim gives a trainer."""
    devices = ",".join(f"EMULATED-{i}" for i in range(gpus))
    return {name: os.environ[name] for name in INHERITED if name in os.environ} | {
        "RESHAPE_JOB_ID": folder.name,
        "RESHAPE_GENERATION": str(generation),
        "RESHAPE_CHECKPOINTS": str(folder / "checkpoints"),
        "RESHAPE_EMULATED_SPEED": json.dumps({str(n): seconds for n, seconds in PACE.items()}),
        "CUDA_VISIBLE_DEVICES": devices,
        "NVIDIA_VISIBLE_DEVICES": devices,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONUNBUFFERED": "1",
    }


def shapes(output: str) -> list[GpuShape]:
    """One per process that has trained."""
    found: list[GpuShape] = []
    for line in output.splitlines():
        if begin := BEGIN.match(line):
            found.append(GpuShape(int(begin[1]), int(begin[2])))
        elif (step := STEP.match(line)) and found:
            found[-1].steps.append((int(step[1]), float(step[2])))
    return found


def gap_s(output: str, gpus: int) -> float:
    """Seconds between the last two shapes. `WrongAnswer` unless the new one goes on where the old one ended."""
    old, new = shapes(output)[-2:]
    if not old.steps or not new.steps:
        raise WrongAnswer(f"a shape trained no step:\n{output[-1000:]}")
    last, first = old.steps[-1], new.steps[0]
    if new.gpus != gpus or new.begins_at != last[0] or first[0] != last[0] + 1:
        raise WrongAnswer(f"step {last[0]} was followed by step {first[0]} on {new.gpus} GPUs, {gpus} were asked for")
    return first[1] - last[1]


def settle(side: MeasuredSide, steps: int = SETTLED) -> int:
    """Wait until the present shape has trained so many steps; its GPU count."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        found = shapes(side.output())
        if found and len(found[-1].steps) >= steps:
            return found[-1].gpus
        time.sleep(0.05)
    raise WrongAnswer(f"not {steps} steps within {WITHIN_S:.0f} s:\n{side.output()[-1000:]}")


def turn(side: MeasuredSide) -> tuple[float, dict[str, float]]:
    """One reshape from one GPU to two or back: gap and stages, seconds."""
    gpus = 3 - settle(side)
    stages = side.reshape(gpus)
    return gap_s(side.output(), gpus), stages


def check(side: InPlace | PlainRestart, iterations: int, wanted: str, key: str) -> None:
    """Reshape in the middle and train to the end: every step once, in order, and the same result."""
    turn(side)
    side.wait_ended()
    steps = [step for shape in shapes(side.output()) for step, _ in shape.steps]
    if steps != [*range(1, iterations + 1)]:
        raise WrongAnswer(f"{type(side).__name__}: the steps are not 1 to {iterations}, each once: {steps}")
    got = result(side.output(), key)
    same = got == wanted if key == "weights" else math.isclose(float(got), float(wanted), rel_tol=1e-4)
    if not same:
        raise WrongAnswer(f"{type(side).__name__}: {key} is {got} at the end, {wanted} without a reshape")


def result(output: str, key: str) -> str:
    if found := re.search(rf"^finished=yes .*\b{key}=(\S+)", output, re.MULTILINE):
        return found[1]
    raise WrongAnswer(f"the script printed no {key} at its end:\n{output[-1000:]}")


def uninterrupted(folder: Path, trainer: str, iterations: int) -> str:
    """The result of the script run once, unpaced."""
    folder.mkdir()
    env = environment(folder, max(PACE), 1)
    del env["RESHAPE_EMULATED_SPEED"]
    done = subprocess.run(
        command(trainer, iterations), env=env, cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    if done.returncode:
        raise WrongAnswer(f"the script ended with code {done.returncode}: {done.stderr[-1000:]}")
    return result(done.stdout, RESULT[trainer])


@contextmanager
def plain(folder: Path, trainer: str, iterations: int) -> Iterator[PlainRestart]:
    side = PlainRestart(folder, trainer, iterations)
    try:
        yield side
    finally:
        side.kill()


@dataclass
class GapMeasurements:
    """Seconds, pair by pair, and the stages of those in place."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    stages: list[dict[str, float]] = field(default_factory=list)


def measure(cluster: Cluster, folder: Path, trainer: str, iterations: int, pairs: int) -> GapMeasurements:
    """Check both sides, then time them in turns; who is first alternates."""
    long = InPlace(cluster, f"gap-{trainer}", trainer, ENDLESS)
    wanted = uninterrupted(folder / f"uninterrupted-{trainer}", trainer, iterations)
    with plain(folder / f"check-{trainer}", trainer, iterations) as side:
        check(side, iterations, wanted, RESULT[trainer])
    job = InPlace(cluster, f"check-{trainer}", trainer, iterations)
    job.wait_started()
    check(job, iterations, wanted, RESULT[trainer])
    gaps = GapMeasurements()
    with plain(folder / f"plain-{trainer}", trainer, ENDLESS) as side:
        for number in range(pairs):
            turns: list[Callable[[], None]] = [lambda: _ours(gaps, long), lambda: gaps.theirs.append(turn(side)[0])]
            for take in turns if number % 2 else reversed(turns):
                take()
    cluster.api.cancel(f"gap-{trainer}")
    return gaps


def _ours(gaps: GapMeasurements, side: InPlace) -> None:
    seconds, stages = turn(side)
    gaps.ours.append(seconds)
    gaps.stages.append(stages)


def run(options: argparse.Namespace) -> Result:
    """Trains NumPy, with `keras` Keras too."""
    pairs, iterations = (2, 60) if options.tiny else (12, 200)
    found: dict[str, GapMeasurements] = {}
    with tempfile.TemporaryDirectory(prefix="gap-") as name:
        folder = Path(name)
        store = open_store(f"sqlite:///{folder / 'reshape.sqlite'}")
        try:
            with running(folder / "state", store, 4, PACE, JOB_TYPE) as cluster:
                for trainer in ("numpy", "keras") if options.keras else ("numpy",):
                    found[trainer] = measure(cluster, folder, trainer, iterations, pairs)
        finally:
            store.close()
    sizes: dict[str, Any] = {"pairs": pairs, "GPUs": "1 and 2 in turns", "seconds per iteration": PACE}
    return Result(
        "gap", "R1", "training standing still in a reshape, in place against a plain kill and re-exec",
        "kill and re-exec", sizes, [_row(t, g) for t, g in found.items()], [*_tables(found)],
        [f"Checked first: reshaped after {SETTLED} steps, both sides end {iterations} steps with the result of a run "
         "that was never interrupted."],
    )  # fmt: skip


def _row(trainer: str, gaps: GapMeasurements) -> Row:
    ratio = median(a / b for a, b in zip(gaps.ours, gaps.theirs, strict=True))
    return Row(f"{trainer}, median gap", median(gaps.ours), median(gaps.theirs), ratio, "s", FLOOR)


def _tables(found: dict[str, GapMeasurements]) -> Iterator[Table]:
    for trainer, gaps in found.items():
        pairs = [[f"{a:.3f}", f"{b:.3f}", f"{a / b:.2f}"] for a, b in zip(gaps.ours, gaps.theirs, strict=True)]
        yield Table(f"{trainer}: every pair, seconds", ["IN PLACE", "KILL AND RE-EXEC", "RATIO"], pairs)
    rows = [[t, *(_median(s, g.stages) for s in STAGES), f"{median(g.ours):.3f}"] for t, g in found.items()]
    yield Table("in place, median seconds by stage", ["", *(s.upper() for s in STAGES), "GAP"], rows)


def _median(stage: str, stages: list[dict[str, float]]) -> str:
    known = [s[stage] for s in stages if stage in s]
    return f"{median(known):.3f}" if known else "-"
