"""R1: how long training stands still when a job is reshaped in place, beside a plain kill and re-exec of the script.

All sides run the very same script with the same arguments, pace and kind of checkpoint folder, at the same time on
this machine, and take turns; while one is timed the trainers of the others are stopped, so that it has the cores that a
start of its own would have. In place: an operator's request to the real coordinator, real sidecar and shim; warm with
an interpreter that waits (`sidecar/warm.py`), cold without. Plain: SIGTERM, wait, start it again with other GPUs, at
once. A gap runs from the last step of the old shape to the first of the new, by the `time=` that the trainer printed.

Before anything is timed, all sides must end with the same result as a run that was never interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
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
from tests.frozen import frozen
from tests.interpreters import python_with

PACE = {1: 0.02, 2: 0.0125, 4: 0.01}  # seconds per iteration: a gap holds the rest of one step and one whole step
JOB_TYPE = "gap"
ENDLESS = 10_000_000  # iterations
SETTLED = 25  # steps between two gaps, so that nothing of the last one is still being written
RESULT = {"numpy": "weights", "keras": "val_loss", "torch": "val_accuracy"}  # what the script prints at its end
FLOORS = {"numpy": (0.5, None), "keras": (None, 0.2), "torch": (None, 0.3)}  # of warm: of kill and re-exec, of cold
ITERATIONS = {"numpy": 1000, "keras": 3000, "torch": 1500}  # of what is checked: an interpreter must come to wait in it
FRAMEWORKS = {"numpy": "numpy", "keras": "tensorflow", "torch": "torch"}  # trainer -> the module that it needs
MOST_S = {"keras": 0.6}  # of a warm gap
SIDES = ("warm", "cold", "kill")
STAGES = ("signal", "checkpoint", "exit", "spawn", "first step")

BEGIN = re.compile(r"^job=\S+ gpus=(\d+) .*?\bbegins_at=(\d+) ")
STEP = re.compile(r"^step=(\d+) .*\btime=([0-9.]+)$")


@dataclass(frozen=True)
class Trainer:
    """An example by its name, the Python that has its framework, and the environment variables that it needs there."""

    name: str
    python: str
    env: dict[str, str]


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

    def trainer_pid(self) -> int: ...

    def output(self) -> str: ...


class InPlace:
    """A job of the real coordinator, reshaped by an operator's requests. `warm`: an interpreter waits beside it."""

    def __init__(self, cluster: Cluster, job: str, trainer: Trainer, iterations: int, warm: bool = True) -> None:
        self._cluster, self._job, self._warm = cluster, job, warm
        self.waiting_mib: list[tuple[float, float]] = []  # resident and proportional size of each that waited
        doc = {"job_id": job, "job_type": JOB_TYPE, "command": command(trainer, iterations), "iterations": iterations}
        doc["elastic"] = True  # it is stopped as soon as it trains
        doc["env"] = trainer.env if warm else {**trainer.env, "RESHAPE_WARM": "0"}
        self.began = cluster.submit({**doc, "optional_num_gpus": sorted(PACE)})

    def wait_started(self) -> None:
        self._cluster.until("started", self._job, self.began)

    def reshape(self, gpus: int) -> dict[str, float]:
        if self._warm:
            self.wait_ready()
        before = self._cluster.api.history.last_event()
        self._cluster.api.operator.request(self._job, gpus, None)
        stages: dict[str, float] = self._cluster.until("reshaped", self._job, before)["stages_s"]
        return stages

    def wait_ready(self) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not (status := shim_status(self._cluster.launch_folder(self._job)))["warm"].startswith("ready"):
            none_will = status["warm"] and not status["warm"].startswith("begins")
            if none_will or time.monotonic() > deadline:
                raise WrongAnswer(f"no interpreter waits beside {self._job}: {status['warm']}")
            time.sleep(0.05)
        for pid in waiting_pids(status):
            self.waiting_mib.append((kib(pid, "Rss:") / 1024, kib(pid, "Pss:") / 1024))

    def trainer_pid(self) -> int:
        return int(shim_status(self._cluster.launch_folder(self._job))["trainer_pid"])

    def wait_ended(self) -> None:
        self._cluster.until("completed", self._job, self.began)

    def output(self) -> str:
        return self._cluster.output(self._job)


class PlainRestart:
    """The same script as a plain process: killed, and started again."""

    def __init__(self, folder: Path, trainer: Trainer, iterations: int, pace: Mapping[int, float] = PACE) -> None:
        self._pace = pace
        self._folder, self._command, self._more = folder, command(trainer, iterations), trainer.env
        self._folder.mkdir()
        self._generation, self._lines = 0, list[str]()
        self._start(max(PACE))

    def _start(self, gpus: int) -> None:
        self._generation += 1
        self._stepped = threading.Event()  # a new one: the reader of the old process may still set its own
        env = environment(self._folder, gpus, self._generation, self._pace) | self._more
        self._process = subprocess.Popen(
            self._command, env=env, cwd=self._folder,
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

    def trainer_pid(self) -> int:
        return self._process.pid

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


def shim_status(launch: Path) -> dict[str, Any]:
    """What the shim of this launch says of itself."""
    folder = os.open(launch, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(f"/proc/self/fd/{folder}/shim.sock")
            peer.sendall(b'{"do": "status"}\n')
            with peer.makefile("r") as lines:
                found: dict[str, Any] = next(m["status"] for m in map(json.loads, lines) if "ok" in m)
                return found
    finally:
        os.close(folder)


def waiting_pids(status: dict[str, Any]) -> list[int]:
    """The children of the shim that run the trainer's command and are not the trainer."""
    own = Path(f"/proc/{status['trainer_pid']}/cmdline").read_bytes()
    children = Path(f"/proc/{status['shim_pid']}/task/{status['shim_pid']}/children").read_text().split()
    same = [int(pid) for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes() == own]
    return [pid for pid in same if pid != status["trainer_pid"]]


def kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def command(trainer: Trainer, iterations: int) -> list[str]:
    script = shipped.folder("examples") / f"{trainer.name}_digits.py"
    return [trainer.python, str(script), "--iterations", str(iterations), "--save-every", "0"]


def environment(folder: Path, gpus: int, generation: int, pace: Mapping[int, float] = PACE) -> dict[str, str]:
    """Return the environment variables that the shim gives a trainer."""
    devices = ",".join(f"EMULATED-{i}" for i in range(gpus))
    return {name: os.environ[name] for name in INHERITED if name in os.environ} | {
        "RESHAPE_JOB_ID": folder.name,
        "RESHAPE_GENERATION": str(generation),
        "RESHAPE_CHECKPOINTS": str(folder / "checkpoints"),
        "RESHAPE_EMULATED_SPEED": json.dumps({str(n): seconds for n, seconds in pace.items()}),
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


def settle(side: MeasuredSide, steps: int = SETTLED, after: int = 0) -> int:
    """Wait until the present shape, which comes after so many others, has trained so many steps; its GPU count."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        found = shapes(side.output())
        if len(found) > after and len(found[-1].steps) >= steps:
            return found[-1].gpus
        time.sleep(0.05)
    raise WrongAnswer(f"not {steps} steps within {WITHIN_S:.0f} s:\n{side.output()[-1000:]}")


def turn(side: MeasuredSide, fewer: bool) -> tuple[float, dict[str, float]]:
    """One reshape to the next smaller or larger number of GPUs, if there is one: gap and stages, seconds."""
    gpus, before = neighbour(settle(side), fewer), len(shapes(side.output()))
    stages = side.reshape(gpus)
    settle(side, 1, before)
    return gap_s(side.output(), gpus), stages


def neighbour(gpus: int, fewer: bool) -> int:
    """The next count in that direction; at the end of the counts, in the other one."""
    counts = sorted(PACE, reverse=fewer)
    beyond = counts[counts.index(gpus) + 1 :]
    return beyond[0] if beyond else counts[-2]


def check(side: InPlace | PlainRestart, iterations: int, wanted: str, key: str) -> None:
    """Reshape in the middle and train to the end: every step once, in order, and the same result."""
    turn(side, fewer=True)
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


def uninterrupted(folder: Path, trainer: Trainer, iterations: int) -> str:
    """The result of the script run once, unpaced."""
    folder.mkdir()
    env = environment(folder, max(PACE), 1) | trainer.env
    del env["RESHAPE_EMULATED_SPEED"]
    done = subprocess.run(
        command(trainer, iterations), env=env, cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    if done.returncode:
        raise WrongAnswer(f"the script ended with code {done.returncode}: {done.stderr[-1000:]}")
    return result(done.stdout, RESULT[trainer.name])


@contextmanager
def plain(folder: Path, trainer: Trainer, iterations: int, pace: Mapping[int, float] = PACE) -> Iterator[PlainRestart]:
    side = PlainRestart(folder, trainer, iterations, pace)
    try:
        yield side
    finally:
        side.kill()


@dataclass(frozen=True)
class Round:
    """What differs between rounds, each with a period of its own: causes that change together cannot be told apart."""

    number: int

    @property
    def fewer(self) -> bool:
        """From four GPUs to two, to one, and back in the next two."""
        return self.number % 4 < 2

    @property
    def order(self) -> tuple[str, ...]:
        return SIDES if self.number // 4 % 2 else SIDES[::-1]

    def kinds(self) -> tuple[str, ...]:
        """The columns of `KINDS` that it counts in: what a process has imported goes on in the next but one."""
        return (
            "odd" if self.number % 2 else "even",
            "fewer GPUs" if self.fewer else "more GPUs",
            f"{self.order[0]} first",
        )


KINDS = ("even", "odd", "fewer GPUs", "more GPUs", f"{SIDES[-1]} first", f"{SIDES[0]} first")


@dataclass
class GapMeasurements:
    """By side: seconds of each gap, and the stages of those in place. `memory`: MiB of interpreters that waited."""

    gaps: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    stages: dict[str, list[dict[str, float]]] = field(default_factory=lambda: {side: [] for side in SIDES})
    memory: list[tuple[float, float]] = field(default_factory=list)

    def take(self, name: str, side: MeasuredSide, fewer: bool) -> None:
        seconds, stages = turn(side, fewer)
        self.gaps[name].append(seconds)
        self.stages[name].append(stages)

    def ratio(self, name: str, other: str) -> float:
        return median(a / b for a, b in zip(self.gaps[name], self.gaps[other], strict=True))


def measure(cluster: Cluster, folder: Path, trainer: Trainer, iterations: int, rounds: int) -> GapMeasurements:
    """Check all sides, then time them in turns."""
    wanted = uninterrupted(folder / f"uninterrupted-{trainer.name}", trainer, iterations)
    with plain(folder / f"check-{trainer.name}", trainer, iterations) as side:
        check(side, iterations, wanted, RESULT[trainer.name])
    for warm in (True, False):
        job = InPlace(cluster, f"check-{trainer.name}-{'warm' if warm else 'cold'}", trainer, iterations, warm)
        job.wait_started()
        check(job, iterations, wanted, RESULT[trainer.name])
    found = GapMeasurements()
    jobs = {
        name: InPlace(cluster, f"{name}-{trainer.name}", trainer, ENDLESS, name == "warm") for name in ("warm", "cold")
    }
    with plain(folder / f"plain-{trainer.name}", trainer, ENDLESS) as side:
        sides: dict[str, MeasuredSide] = {**jobs, "kill": side}
        for each in sides.values():  # one that has not been launched yet could not be frozen
            settle(each)
        for one in map(Round, range(rounds)):
            for name in one.order:
                with frozen([other.trainer_pid() for known, other in sides.items() if known != name]):
                    found.take(name, sides[name], one.fewer)
    found.memory = jobs["warm"].waiting_mib
    for name in jobs:
        cluster.api.operator.cancel(f"{name}-{trainer.name}")
    return found


def trainers(folder: Path, tiny: bool) -> Iterator[Trainer]:
    """Yield NumPy's, and unless it is `tiny` Keras' and PyTorch's where a Python here has them.

    Another Python than ours finds our hooks and the digits by links in `folder`, which has the name of a folder of
    libraries: nothing else is imported by an interpreter that waits.
    """
    links = [
        Path(str(spec.origin)).parent for spec in map(importlib.util.find_spec, ("reshape_hooks", "sklearn")) if spec
    ]
    for name, module in FRAMEWORKS.items():
        python = python_with(module) if name == "numpy" or not tiny else None
        if python == sys.executable:
            yield Trainer(name, python, {})
        elif python:
            folder.mkdir()
            for package in links:
                (folder / package.name).symlink_to(package)
            yield Trainer(name, python, {"PYTHONPATH": str(folder)})


def run(options: argparse.Namespace) -> Result:
    rounds = 2 if options.tiny else 30
    found: dict[str, GapMeasurements] = {}
    with tempfile.TemporaryDirectory(prefix="gap-") as name:
        folder = Path(name)
        store = open_store(f"sqlite:///{folder / 'reshape.sqlite'}")
        try:
            with running(folder / "state", store, 2 * max(PACE), PACE, JOB_TYPE) as cluster:
                for trainer in trainers(folder / "site-packages", options.tiny):
                    found[trainer.name] = measure(cluster, folder, trainer, ITERATIONS[trainer.name], rounds)
        finally:
            store.close()
    sizes: dict[str, Any] = {"rounds": rounds, "GPUs": "4, 2, 1 and back", "seconds per iteration": PACE}
    return Result(
        "gap", "R1", "training standing still in a reshape: in place (warm: an interpreter waits; cold: none does) "
        "against a plain kill and re-exec", "the other side", sizes,
        [row for t, g in found.items() for row in _rows(t, g)], [*_tables(found)],
        [f"Checked first: reshaped after {SETTLED} steps or more, all sides end with the result of a run that was "
         "never interrupted."],
    )  # fmt: skip


def _rows(trainer: str, found: GapMeasurements) -> Iterator[Row]:
    for name, other, floor in (
        ("warm", "kill", FLOORS[trainer][0]),
        ("warm", "cold", FLOORS[trainer][1]),
        ("cold", "kill", None),
    ):
        ours, theirs = median(found.gaps[name]), median(found.gaps[other])
        yield Row(f"{trainer}, median gap, {name} against {other}", ours, theirs, found.ratio(name, other), "s", floor)
    if trainer in MOST_S:
        ours, most = median(found.gaps["warm"]), MOST_S[trainer]
        yield Row(f"{trainer}, median gap, warm against {most} s", ours, most, ours / most, "s", 1.0)


def _tables(found: dict[str, GapMeasurements]) -> Iterator[Table]:
    for trainer, one in found.items():
        rounds = zip(*(one.gaps[side] for side in SIDES), strict=True)
        shown = [[f"{seconds:.3f}" for seconds in gaps] for gaps in rounds]
        yield Table(f"{trainer}: every round, seconds", ["WARM", "COLD", "KILL AND RE-EXEC"], shown)
    spread = [
        [f"{trainer}, {side}", *(_share(one.gaps[side], share) for share in (0.5, 0.95))]
        for trainer, one in found.items()
        for side in SIDES
    ]
    yield Table("gap, seconds", ["", "P50", "P95"], spread)
    by_kind = [
        [f"{trainer}, {side}", *(_of_kind(kind, one.gaps[side]) for kind in KINDS)]
        for trainer, one in found.items()
        for side in SIDES
    ]
    yield Table("gap, seconds, P50 of the rounds that are", ["", *(kind.upper() for kind in KINDS)], by_kind)
    stages = [
        [f"{trainer}, {side}", *(_stage(stage, one.stages[side]) for stage in STAGES)]
        for trainer, one in found.items()
        for side in SIDES[:2]
    ]
    yield Table("in place, seconds by stage: p50, p95", ["", *(stage.upper() for stage in STAGES)], stages)
    memory = [[t, *(f"{median(sizes):.0f}" for sizes in zip(*g.memory, strict=True))] for t, g in found.items()]
    yield Table("the interpreter that waits, median MiB", ["", "RSS", "PSS"], memory)


def _share(values: list[float], share: float) -> str:
    """The smallest value that so large a share of them does not exceed."""
    return f"{sorted(values)[math.ceil(share * len(values)) - 1]:.3f}"


def _of_kind(kind: str, gaps: list[float]) -> str:
    of_kind = [gap for number, gap in enumerate(gaps) if kind in Round(number).kinds()]
    return _share(of_kind, 0.5) if of_kind else "-"


def _stage(stage: str, stages: list[dict[str, float]]) -> str:
    known = [one[stage] for one in stages if stage in one]
    return f"{_share(known, 0.5)}, {_share(known, 0.95)}" if known else "-"
