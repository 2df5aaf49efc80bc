"""The ways in which the script is stopped and started again: as a plain process, and by a real shim and sidecar.

Called by `benchmarks.gap_on_gpus`. Times are CLOCK_BOOTTIME, as in what the script prints.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.result import WrongAnswer
from sidecar.protocol import STAYS
from tests.fakes.sidecar_launch import ROOT, Launch
from tests.fakes.tiny_coordinator import TinyCoordinator, serving

SETTLED = 15  # steps before a stop, so that nothing of the last start is still going on
GRACE_S = 300.0  # for a save of any size
END_S = 5.0  # for a launch that nobody needs any more
INTERPRETER_S = 60.0  # within which an interpreter waits, or none will
SETTLE_S = 0.5  # after which one begins to wait; 3 s unless told
POLL_S = 0.01

KILL, COLD, WAITING, HELD = "kill and run again", "cold start", "waiting interpreter", "held on the GPU"
# The state can stay on the GPU once a stop can name the GPUs of the next start.

BEGIN = re.compile(r"^trains=\S+ device=\S+ made_on=\S+$")
STEP = re.compile(r"^step=(\d+) loss=\S+ time=([0-9.]+)$")
STATE = re.compile(r"^before=(-?\d+) after=(-?\d+) bytes=(\d+)$")
CHECKPOINT = re.compile(r"^checkpoint=\S+ .*\btime=([0-9.]+)")

T = TypeVar("T")


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class TimeUp(Exception):
    """The benchmark may not run any longer."""


@dataclass
class Process:
    """Lines that one process of the script printed."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    saved: list[float] = field(default_factory=list)  # when
    states: list[tuple[int, int]] = field(default_factory=list)  # a sum of the state before and after each step
    size: int = 0  # bytes of the state


@dataclass(frozen=True)
class Gap:
    """One stop and start. Seconds; a stage that nobody told of is None."""

    seconds: float
    checkpoint_s: float | None  # from the stop until the state is saved
    exit_s: float  # from then until the process is gone
    start_s: float  # from the start to the end of the first step
    next_step: bool  # whether the step after the last one was the first
    same_state: bool  # whether the state was the same, bit by bit
    size: int  # bytes of the state
    interpreter: str = ""  # as the shim describes the waiting one
    path: str = ""  # that the state took
    load: float = 0.0  # of the machine, at the stop


class Side(Protocol):
    def start(self) -> None: ...

    def gap(self) -> Gap:
        """Stop it once it has settled, and start it again. Raises TimeUp, and WrongAnswer if it trains no more."""
        ...


def processes(output: str) -> list[Process]:
    """One per process that has begun."""
    found: list[Process] = []
    for line in output.splitlines():
        if BEGIN.match(line):
            found.append(Process())
        elif not found:
            continue
        elif step := STEP.match(line):
            found[-1].steps.append((int(step[1]), float(step[2])))
        elif saved := CHECKPOINT.match(line):
            found[-1].saved.append(float(saved[1]))
        elif state := STATE.match(line):
            found[-1].states.append((int(state[1]), int(state[2])))
            found[-1].size = int(state[3])
    return found


def gap_between(old: Process, new: Process, stop_at: float, exit_at: float, start_at: float, **told: Any) -> Gap:
    """The gap between the last step of one process and the first of the next one. `told`: fields of `Gap`."""
    (last, last_at), (first, first_at) = old.steps[-1], new.steps[0]
    saved_at = next((at for at in old.saved if at >= stop_at), None)
    return Gap(
        seconds=first_at - last_at,
        checkpoint_s=None if saved_at is None else saved_at - stop_at,
        exit_s=exit_at - (saved_at or stop_at),
        start_s=first_at - start_at,
        next_step=first == last + 1,
        same_state=new.states[0][0] == old.states[-1][1],
        size=new.size,
        **told,
    )


class Watched:
    """Waits for what a training prints, not beyond `until` (`time.monotonic`)."""

    def __init__(self, log: Path, until: float) -> None:
        self.log, self.until = log, until

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait(self, true: Callable[[], T], ended: Callable[[], bool], within: float = float("inf")) -> T:
        """Return what `true` returns, once that is true, or at the end of so many seconds."""
        limit = time.monotonic() + within
        while not (found := true()) and time.monotonic() < limit:
            if ended():
                raise WrongAnswer(f"the training ended:\n{self.output()[-2000:]}")
            if time.monotonic() > self.until:
                raise TimeUp
            time.sleep(POLL_S)
        return found

    def settled(self) -> bool:
        """True if the newest process has trained for a while."""
        found = processes(self.output())
        return bool(found) and len(found[-1].steps) >= SETTLED

    def trained(self, count: int) -> bool:
        """True if there were so many processes and the newest has told of its first step."""
        found = processes(self.output())
        return len(found) == count and bool(found[-1].states)


class PlainProcess:
    """The script as a process of its own: SIGTERM, wait, start it again."""

    def __init__(self, folder: Path, command: Sequence[str], until: float) -> None:
        self._folder, self._command = folder, command
        self._watched, self._generation = Watched(folder / "output.log", until), 0
        (folder / "checkpoints").mkdir()

    def start(self) -> None:
        self._spawn()
        self._watched.wait(lambda: self._watched.trained(1), self._ended)

    def _spawn(self) -> None:
        self._generation += 1
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {
            **os.environ,
            "PYTHONPATH": path,
            "RESHAPE_JOB_ID": "job-1",
            "RESHAPE_CHECKPOINTS": str(self._folder / "checkpoints"),
            "RESHAPE_GENERATION": str(self._generation),
        }
        with self._watched.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _ended(self) -> bool:
        return self._process.poll() is not None

    def gap(self) -> Gap:
        watched = self._watched
        watched.wait(watched.settled, self._ended)
        load, stop_at = os.getloadavg()[0], boottime()
        self._process.send_signal(signal.SIGTERM)
        watched.wait(self._ended, lambda: False)
        exit_at, old = boottime(), processes(watched.output())
        self._spawn()
        watched.wait(lambda: watched.trained(len(old) + 1), self._ended)
        new = processes(watched.output())[-1]
        return gap_between(old[-1], new, stop_at, exit_at, exit_at, path="disk", load=load)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class InPlace:
    """The script under a real shim and sidecar, stopped in place on its GPUs and started again there.

    `waiting`: an interpreter waits for the next start; `held`: the state may stay on the GPUs.
    """

    def __init__(self, launch: Launch, gpu_ids: Sequence[str], waiting: bool, held: bool, until: float) -> None:
        self._launch, self._gpus, self._waiting, self._held = launch, list(gpu_ids), waiting, held
        self._watched, self._generation = Watched(launch.folder / "output.log", until), 1

    def start(self) -> None:
        self._launch.start(self._generation, tuple(self._gpus))
        self._watched.wait(lambda: self._watched.trained(1), self._ended)

    def _ended(self) -> bool:
        shim = self._launch.status().shim
        if shim.taken:
            raise WrongAnswer(shim.taken)
        return shim.trainer == "exited"

    def _stop(self) -> dict[str, Any]:
        """Return the request to the sidecar."""
        ask = {"generation": self._generation, "command_id": f"stop-{self._generation}", "grace_s": GRACE_S}
        ask["in_place"] = True
        if self._held:
            ask["gpu_ids"] = self._gpus
        return ask

    def _interpreter(self) -> str:
        """Return what the shim says of a waiting interpreter, once one is ready or none will be."""

        def known() -> str:
            shim = self._launch.status().shim
            return "" if shim.waits == "begins" else shim.warm

        self._watched.wait(known, self._ended, INTERPRETER_S if self._waiting else 0.0)
        return self._launch.status().shim.warm

    def gap(self) -> Gap:
        watched, launch = self._watched, self._launch
        watched.wait(watched.settled, self._ended)
        watched.wait(lambda: launch.status().hook and not launch.status().unwritten, self._ended)
        before, load = self._interpreter(), os.getloadavg()[0]
        self._generation += 1
        status, _, answer = launch.call("stop", self._stop())
        if status != 200:
            raise WrongAnswer(f"the sidecar refused to stop the training: {answer}")
        watched.wait(self._ended, lambda: False)
        shim, old = launch.status().shim, processes(watched.output())
        if shim.stop_at is None or shim.exit_at is None:
            raise WrongAnswer("the shim does not tell when it stopped the training")
        self._generation += 1
        launch.start(self._generation, tuple(self._gpus))
        watched.wait(lambda: watched.trained(len(old) + 1), self._ended)
        started = launch.status().shim
        interpreter = f"{before}; started cold: {started.cold}" if started.cold else before
        return gap_between(
            old[-1], processes(watched.output())[-1], shim.stop_at, shim.exit_at, started.spawn_at or shim.exit_at,
            interpreter=interpreter, path=self._path(), load=load,
        )  # fmt: skip

    def _path(self) -> str:
        """Return where the state was between the last two processes, by what the shim says."""
        shim = self._launch.status().shim
        if shim.on_gpu.startswith(STAYS):
            return "GPU memory"
        copy = shim.in_memory
        return "host memory" if copy and copy.generation == self._generation - 2 else "disk"

    def end(self) -> None:
        """At once: nothing of it is needed any more."""
        with contextlib.suppress(OSError):
            if pid := self._launch.status().shim.trainer_pid:
                os.kill(pid, signal.SIGKILL)
        self._launch.end()


@contextmanager
def plain_process(folder: Path, command: Sequence[str], until: float) -> Iterator[Side]:
    side = PlainProcess(folder, command, until)
    try:
        yield side
    finally:
        side.end()


@contextmanager
def in_place(
    folder: Path, command: Sequence[str], gpu_ids: Sequence[str], gpus: str, way: str, until: float
) -> Iterator[Side]:
    """`gpus`: nvml, or emulated. `way`: COLD, WAITING or HELD."""
    waiting = way != COLD
    env = {
        "RESHAPE_CHECKPOINTS": str(folder / "launch" / "checkpoints"),
        "RESHAPE_WARM": str(SETTLE_S if waiting else 0),
    }
    with serving(TinyCoordinator()) as coordinator:
        launch = Launch(
            folder / "launch", coordinator.url(),
            command=list(command), env=env, hooks=True, gpus=gpus, grace_s=END_S,
        )  # fmt: skip
        side = InPlace(launch, gpu_ids, waiting, way == HELD, until)
        try:
            launch.ready()
            yield side
        finally:
            side.end()
