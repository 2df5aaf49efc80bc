"""What all trainings of one process share: how they are asked to stop, where they save, their GPUs and their pace.

Promises: a process announces once that it resumes, and holds the lock of each of its GPUs once; a script that trains
several times in a row has a folder of checkpoints for each of its trainings, in their order. Called by `elastic` and
the adapters, from Python 3.8 on.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from reshape_hooks import plain
from reshape_hooks.locks import GpuLocks

SEVERAL = "it trains in several processes; a loop that stops them together is in examples/torch_digits.py"


class LeftAlone(Exception):
    """The training cannot be resumed exactly and stays as it is; the one argument is the reason, for a sentence."""


class Session:
    """The trainings of this process, one after the other. Make it once it is known that the training resumes."""

    def __init__(self) -> None:
        self.here = plain.environment()
        self.stop = plain.StopFlag(self.here.announce, only_143=True)
        self.pace = plain.Pace(self.here.step_seconds)
        self.locks = GpuLocks(self.here)
        self.labels = {"emulated": "yes"} if self.here.emulated else {}
        self.before = 0  # steps of the trainings that have ended

    def begin(self) -> None:
        """A training begins: from now on SIGTERM is answered after a step."""
        self.stop.idle = False
        self.stop.listen()
        self.pace.start()

    def step(self, step: int, total: int | None, **values: Any) -> None:
        """A step was computed: wait until it would have ended on an emulated GPU, and report it."""
        self.pace.wait()
        self.locks.used(step)
        counts = {"step": self.before + step, **({} if total is None else {"total": self.before + total})}
        plain.say(**counts, **values, **self.labels)

    def end(self, steps: int, save: Callable[[], None]) -> None:
        """A training is over: save it; a stop that was asked for before ends the process.

        One that is asked for later waits for the next training's first step, or for the end of the script, which has
        finished then: no line behind a training is begun that a stop could break off. Where it cannot be saved the
        script goes on all the same, to what it does with its result.
        """
        self.before += steps
        saved = self.saved(save)
        self.stop.idle = False
        self.stop.listen()
        if saved and self.stop.stopping:
            self.leave()

    def saved(self, save: Callable[[], None]) -> bool:
        """Save without need: where that is not possible, it is said, and the training goes on."""
        try:
            save()
        except Exception as fault:  # libraries raise what they like
            sys.stderr.write(f"reshape: this training could not be saved and goes on: {fault}\n")
            return False
        return True

    def leave(self) -> NoReturn:
        """End the process, whose training is saved."""
        raise SystemExit(plain.STOPPED)


_sessions: list[Session] = []
_trainings: list[str] = []


def of_process() -> Session:
    """Return the session of this process; the first call announces that its trainings resume."""
    if not _sessions:
        _sessions.append(Session())
    return _sessions[0]


def next_training() -> tuple[plain.Checkpoints, plain.Saved | None]:
    """Return where the next training of this process saves, and what it resumes from. Raises CheckpointError."""
    here = plain.environment()
    _trainings.append(here.checkpoints)
    count = len(_trainings)
    folder = here.checkpoints if count == 1 else str(Path(here.checkpoints) / f"training-{count}")
    checkpoints = plain.Checkpoints(folder, here.job_id, here.generation)
    return checkpoints, checkpoints.newest(here.prefer if count == 1 else None)


def scratch(checkpoints: plain.Checkpoints, step: int) -> Path:
    """Return a new folder for the files that a library writes of this step, gone when the checkpoints are pruned."""
    folder = checkpoints.folder / f"{plain.TEMPORARY}g{checkpoints.generation}-s{step}-files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def refuse_other_masters() -> None:
    """Raise LeftAlone where the script answers SIGTERM itself, or trains in several processes."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise LeftAlone(SEVERAL)
    handler = signal.getsignal(signal.SIGTERM)
    if handler != signal.SIG_DFL and not any(one.stop.ours() for one in _sessions):
        raise LeftAlone("it has a handler for SIGTERM of its own")


def tell_left_alone(why: LeftAlone) -> None:
    sys.stderr.write(f"reshape: this training keeps its GPUs until it ends, because {why}\n")
