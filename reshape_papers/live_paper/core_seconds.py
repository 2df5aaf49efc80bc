"""Counts the core-seconds that a live run is given, and says when a run tells nothing because others had too many.

Promise: times of processes are read from /proc twice a second, whether they belong to a control group or not; what a
process uses after the last look is not counted. Called by `runner.py`. Linux.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

LOOK_S = 0.5
TRAINING = b"\0RESHAPE_GENERATION="
"""What the environment of a training has, and of what it starts; nothing of the coordinator's."""
FARTHEST = 1.5
"""A baseline may take so many times what the simulation says: real starts, which are not scaled, are in it."""
BUSY = 0.1
"""Of the core-seconds of a run others may have so many, before they are the reason of a baseline that is off."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


class CoreSeconds(NamedTuple):
    """Core-seconds while a contender ran: of its trainings, of its coordinator and launches, of everybody else."""

    trainings: float
    own: float
    others: float
    all: float  # what there was: cores times seconds


class CoreSecondMeter:
    """Counts, from entering to leaving it, for the processes that name a folder in arguments or environment."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder = str(folder).encode()
        self._proc = proc
        self._cpus = os.sched_getaffinity(0)
        self._used: dict[tuple[str, str], tuple[bool, float]] = {}  # by pid and start: whether it trains, and seconds
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="core-seconds", daemon=True)
        self._began = 0.0
        self._busy_before = 0.0
        self.found = CoreSeconds(0.0, 0.0, 0.0, 0.0)

    def __enter__(self) -> CoreSecondMeter:
        self._began = time.monotonic()
        self._busy_before = self._busy_s()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()
        self._look()
        busy_s = self._busy_s() - self._busy_before
        spent_s = time.monotonic() - self._began
        trainings = sum(seconds for trains, seconds in self._used.values() if trains)
        own = sum(seconds for trains, seconds in self._used.values() if not trains)
        self.found = CoreSeconds(trainings, own, max(0.0, busy_s - trainings - own), spent_s * len(self._cpus))

    def _follow(self) -> None:
        while not self._left.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for entry in self._proc.glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
                variables = b"\0" + (entry / "environ").read_bytes()
                if self._folder in variables or self._folder in (entry / "cmdline").read_bytes():
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    seconds = (int(fields[11]) + int(fields[12])) * _TICK_S
                    self._used[entry.name, fields[19]] = TRAINING in variables, seconds

    def _busy_s(self) -> float:
        """Return the seconds for which the cores that this process may use have been busy since they began."""
        lines = (line.split() for line in (self._proc / "stat").read_text().splitlines())
        cores = (words[1:] for words in lines if words[0] in {f"cpu{number}" for number in self._cpus})
        # user, nice, system, idle, iowait, irq, softirq, steal
        return sum(sum(map(int, words[:3])) + sum(map(int, words[5:8])) for words in cores) * _TICK_S


def of_run(given: CoreSeconds, asked_s: float | None) -> dict[str, Any]:
    """Return the fields of a run's row; `asked_s`: core-seconds of the work of its jobs, where they train on CPU."""
    found: dict[str, Any] = {} if asked_s is None else {"asked_core_s": asked_s}
    found["core_s"] = given.trainings
    found["own_core_s"] = given.own
    found["others_core_s"] = given.others
    found["all_core_s"] = given.all
    return found


def why_off(baseline: Mapping[str, Any], should_s: float) -> str | None:
    """Return why a draw tells nothing, and what to do; None where its baseline took about what it should.

    `baseline`: its row; `should_s`: its makespan in the simulation of the same draw, both in seconds of the paper.
    """
    took_s = baseline["makespan_s"]
    if took_s <= FARTHEST * should_s:
        return None
    sentence = (
        f"Draw {baseline['seed']} says nothing of the policies: its baseline {baseline['policy']} took {took_s:.0f} s, "
        f"where {should_s:.0f} s are simulated"
    )
    others = baseline["others_core_s"]
    whole = baseline["all_core_s"]
    used = f"other programs used {others:.0f} of {whole:.0f} core-seconds meanwhile"
    if others > BUSY * whole:
        return f"{sentence}; {used}: end them and run it again."
    return f"{sentence}; {used}, so that starts weigh too much at this scale: take a larger --scale."
