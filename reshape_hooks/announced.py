"""Tells the scheduler that a training saves when it is stopped: only once it was tried, and only as long as it is true.

Promises: it is announced when a save of this training has succeeded, or when it was resumed from one. A save that
fails, a SIGTERM that would go to a handler of the script, and GPUs that the script chooses itself withdraw it at once,
with the reason; the next save that succeeds announces it again. A training whose save fails goes on, and tries again
after a pause. Called by `adapters` and the hooks of Keras between two steps; the standard library only, Python 3.8 and
newer. Times are seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from reshape_hooks import plain

AGAIN_S, AGAIN_STOPPING_S = 10.0, 1.0  # after a save that has failed, until the next try; while a stop waits for it
AGAIN_SHARE = 20  # at most one part of so many of a training's time is spent on saves that fail
TAKEN = "the script has set a handler for SIGTERM of its own, to which a stop would go"
OTHER_GPUS = "the script has set CUDA_VISIBLE_DEVICES itself, to GPUs that the job was not given; remove that line"
reasons: list[str] = []  # why no training of this process may be stopped now, of those who know


class Announced:
    """What is said of the trainings of this process, one after the other."""

    def __init__(self, stop: plain.StopFlag, file: str | None) -> None:
        """`file`: in which it is announced; None: nobody reads it, or another process speaks."""
        self.stop, stop.file = stop, file
        self._begun = self._tried = False
        self._barred = ""  # why this training must not be stopped, whatever was saved of it
        self._failed_at = self._pause_s = 0.0
        self._told = ""  # why it could not be saved

    def begin(self, resumed: bool) -> None:
        """A training begins. `resumed`: from a checkpoint, which shows that it can be saved."""
        self.stop.idle = self._begun = self._tried = False
        self._barred = ""
        self.stop.listen()
        if resumed and not _barred():
            self.outcome(None)

    def stepped(self) -> None:
        """A step was done: look whether a stop would still come to us, and whether it would free what it shall."""
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
        """True if this training is to be saved now so that it can be announced."""
        return bool(self.stop.file) and self._begun and not self._tried and not self._barred and self.may_try()

    def may_try(self) -> bool:
        """True if no save has failed a short while ago."""
        return plain.boottime() >= self._failed_at + self._pause_s

    def stopping(self) -> bool:
        """True if it is to save and end now."""
        return self.stop.stopping and plain.boottime() >= self._failed_at + AGAIN_STOPPING_S

    def outcome(self, fault: Exception | None) -> None:
        """This training was saved, or it could not be."""
        self._tried = fault is None
        if self._barred:
            return
        if fault is not None:
            self.stop.withdraw(str(fault) or repr(fault))
        elif not self.stop.announced:
            self.stop.announce()

    def saved(self, save: Callable[[], None]) -> bool:
        """Save: where that is not possible, it is said, and the training goes on, as nothing is gained by its end."""
        began = plain.boottime()
        try:
            save()
        except Exception as fault:  # libraries raise what they like
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
        """A training is over. `saved`: its result is."""
        if saved:
            self.outcome(None)
        self.stop.idle = False
        if not self._barred:
            self.stop.listen()

    def leave_alone(self, why: str) -> None:
        """A training begins that is not ours: a stop ends it as if we were not here."""
        self.stop.withdraw(why)
        if self.stop.file:
            plain.end_reports()
        if self.stop.ours():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _barred() -> str:
    """Return why this process keeps its GPUs, whatever is saved of its trainings; empty if nothing keeps them."""
    return OTHER_GPUS if chooses_gpus() else next(iter(reasons), "")


def chooses_gpus() -> bool:
    """True if this process names GPUs in CUDA_VISIBLE_DEVICES that its job was not given. It may use fewer, or none."""
    given = os.environ.get("RESHAPE_GPUS")
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if given is None or chosen in (given, "-1"):
        return False
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    return any(not any(one.startswith(name) for one in given.split(",")) for name in names)  # CUDA takes a UUID's begin
