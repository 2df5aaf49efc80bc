"""Tells the scheduler that a training saves when stopped: only once that has been tried, and only while it is true.

Promises: it is announced once a save of this training has succeeded, or once it was resumed from one. A failing save, a
SIGTERM that would go to a handler of the script, and GPUs chosen by the script itself withdraw it at once, with the
reason; the next successful save announces it again. A training whose save fails continues, and tries again after a
pause. Called by `adapters` and the Keras hooks between two steps; standard library only, Python 3.8 and newer. Times
are seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from reshape_hooks import plain

AGAIN_S, AGAIN_STOPPING_S = 10.0, 1.0  # after a failed save, until the next try; while a stop waits for it
AGAIN_SHARE = 20  # at most 1/AGAIN_SHARE of a training's time goes to failing saves
TAKEN = "the script has set a handler for SIGTERM of its own, to which a stop would go"
OTHER_GPUS = "the script has set CUDA_VISIBLE_DEVICES itself, to GPUs that the job was not given; remove that line"
reasons: list[str] = []  # why no training of this process may be stopped now, from modules that know


class Announced:
    """What is announced about this process's trainings, one after the other."""

    def __init__(self, stop: plain.StopFlag, file: str | None) -> None:
        """`file`: the announcement; None: nobody reads it, or another process writes it."""
        self.stop, stop.file = stop, file
        self._begun = self._tried = False
        self._barred = ""  # why this training must not be stopped, whatever was saved of it
        self._failed_at = self._pause_s = 0.0
        self._told = ""  # why it could not be saved

    def begin(self, resumed: bool) -> None:
        """Begin a training. `resumed`: from a checkpoint, which shows that it can be saved."""
        self.stop.idle = self._begun = self._tried = False
        self._barred = ""
        self.stop.listen()
        if resumed and not _barred():
            self.outcome(None)

    def stepped(self) -> None:
        """Check after a step whether a stop would still reach us, and whether it would free the right GPUs."""
        self._begun = True
        was, self._barred = self._barred, "" if self.stop.ours() else TAKEN
        self._barred = self._barred or _barred()
        if self._barred and self._barred != was:
            self.stop.withdraw(self._barred)
            if self.stop.file:
                plain.warn(f"reshape: this training keeps its GPUs from now on, because {self._barred}")
        elif was and not self._barred:
            self._tried = False

    def untried(self) -> bool:
        """Return whether this training must be saved now so that it can be announced."""
        return bool(self.stop.file) and self._begun and not self._tried and not self._barred and self.may_try()

    def may_try(self) -> bool:
        """Return whether enough time has passed since a failed save."""
        return plain.boottime() >= self._failed_at + self._pause_s

    def stopping(self) -> bool:
        """Return whether it must save and end now."""
        return self.stop.stopping and plain.boottime() >= self._failed_at + AGAIN_STOPPING_S

    def outcome(self, fault: Exception | None) -> None:
        """Record that this training was saved, or could not be."""
        self._tried = fault is None
        if self._barred:
            return
        if fault is not None:
            self.stop.withdraw(str(fault) or repr(fault))
        elif not self.stop.announced:
            self.stop.announce()

    def saved(self, save: Callable[[], None]) -> bool:
        """Save; return whether that worked. On failure say so and go on training, as ending it would gain nothing."""
        began = plain.boottime()
        try:
            save()
        except Exception as fault:  # libraries raise anything
            self._failed_at = plain.boottime()
            self._pause_s = max(AGAIN_S, AGAIN_SHARE * (self._failed_at - began))
            self.outcome(fault)
            if str(fault) != self._told:
                self._told = str(fault)
                plain.warn(f"reshape: this training could not be saved and goes on: {fault}")
            return False
        self._told = ""
        return True

    def end(self, saved: bool) -> None:
        """End a training. `saved`: its result is."""
        if saved:
            self.outcome(None)
        self.stop.idle = False
        if not self._barred:
            self.stop.listen()

    def leave_alone(self, why: str) -> None:
        """Begin a training that we leave alone: a stop ends it as if we were not here."""
        self.stop.withdraw(why)
        if self.stop.file:
            plain.end_reports()
        if self.stop.ours():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _barred() -> str:
    """Return why this process keeps its GPUs, whatever is saved of its trainings; empty if nothing keeps them."""
    return OTHER_GPUS if chooses_gpus() else next(iter(reasons), "")


def chooses_gpus() -> bool:
    """Return whether CUDA_VISIBLE_DEVICES names GPUs that the job was not given. It may use fewer, or none."""
    given = os.environ.get("RESHAPE_GPUS")
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if given is None or chosen in (given, "-1"):
        return False
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    return any(not any(one.startswith(name) for one in given.split(",")) for name in names)  # CUDA takes UUID prefixes
