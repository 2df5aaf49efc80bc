"""Saves a training now and then without being asked, so that a crash costs little: how often, and beside the training.

Promises: what is saved is the state of one step, taken between two; nothing of the training waits for the disk where
memory allows it; one save is written at a time, and the one that a stop asks for comes after it. Called by `Elastic`
and the adapters between two steps. The standard library and `plain`, Python 3.8 and newer; times are seconds.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from reshape_hooks import plain
from reshape_hooks.files import note, watch
from reshape_hooks.periodic.interval import interval_s
from reshape_hooks.periodic.memory import free_memory

BETWEEN_FAILURES_S = 86_400.0  # of one training, where its environment says no other
USUAL_SAVE_S = 0.02  # until one was measured, and where it takes less: nobody needs one more often than that asks for
SLOWS_BY = 0.05  # of the time for which a save is written beside it, a training is taken to lose that much
MEMORY_SHARE = 4  # at most one of so many free bytes is taken for a save that is written beside the training


class Saver:
    """Writes the checkpoints of one training: when asked, and by the clock. Not for several threads."""

    def __init__(
        self,
        checkpoints: plain.Checkpoints,
        variables: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = plain.boottime,
        written: Callable[[str], None] = lambda name: None,
        outcome: Callable[[Exception | None], object] = lambda fault: None,
    ) -> None:
        """`written`: called with the name of each new checkpoint before an older one is deleted, in any thread.

        `outcome`: called in the thread of the training with None after each save that is on the disk, and with the
        fault of one that was written beside the training and failed; of others the caller hears by what is raised.
        Raises SystemExit with a sentence if RESHAPE_MTBF_S cannot be used.
        """
        self.checkpoints, self._clock, self._written, self._outcome = checkpoints, clock, written, outcome
        self.between_failures_s = _between_failures_s(variables.get("RESHAPE_MTBF_S", ""))
        self._stood_s = self._took_s = USUAL_SAVE_S  # of the last save: for the training, until it was on the disk
        self._size = 0  # bytes of the newest checkpoint; 0: not known
        self._since = clock()
        self._thread: threading.Thread | None = None
        self._lines: list[str] = []
        self._fault: Exception | None = None
        self._said = ""  # why saves fail since the last one that did not

    @property
    def every_s(self) -> float:
        """The seconds between two saves: infinite if there are none without being asked."""
        if not self.between_failures_s:
            return math.inf
        costs_s = self._stood_s + SLOWS_BY * (self._took_s - self._stood_s)
        return interval_s(max(USUAL_SAVE_S, costs_s), self.between_failures_s)

    def begin(self) -> None:
        """The training begins: what came before need not be saved."""
        self._since = self._clock()

    def due(self) -> bool:
        """True if it is time to save. Ask after each step: it also reports the save that has been written since."""
        watch.step_done()
        if self._thread is not None:
            if self._thread.is_alive():
                return False
            self.finish()
        return self._clock() - self._since >= self.every_s

    def now(self, step: int, files: Mapping[str, Any], in_memory: Mapping[str, Any] | None = None) -> None:
        """Save these files, as `plain.Checkpoints.save` takes them; durable on return. Raises CheckpointError.

        `in_memory`: the files for memory, where that is offered and they are others. Call `finish` first where they are
        made in the folder of the checkpoints: it is pruned after each save.
        """
        self.finish()
        began = self._clock()
        self._write(step, self._noted(files), plain.tell, in_memory and self._noted(in_memory))
        self._said = ""
        self._measured(began, self._clock())
        self._outcome(None)

    def beside(self, step: int, make: Callable[[bool], Mapping[str, Any]]) -> None:
        """Take the state of this step, and write it while training goes on, where memory allows that.

        `make(True)`: returns files that later steps do not change. `make(False)`: they are written before this returns.
        Raises what `make` raises, and CheckpointError.
        """
        self.finish()
        began = self._since = self._clock()
        if not 0 < self._size * MEMORY_SHARE < free_memory():
            self._write(step, self._noted(make(False)), plain.tell)
            self._measured(began, self._clock())
            self._outcome(None)
            return
        files, taken = self._noted(make(True)), self._clock()

        def write() -> None:
            try:
                self._write(step, files, self._lines.append)
            except Exception as fault:
                self._fault = fault
            self._measured(began, taken)

        self._thread = threading.Thread(target=write, name="reshape-save")
        try:
            self._thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._thread = None
            write()
            self.finish()

    def finish(self) -> None:
        """Wait for what is still being written, and report it: also that it failed, which training outlives."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        lines, self._lines = self._lines, []
        for line in lines:
            plain.tell(line)
        fault, self._fault = self._fault, None
        why = _reason(fault)
        if why and why != self._said:
            plain.warn(f"reshape: this training goes on, but {fault}")
        if why or thread is not None:
            self._said = why
        if thread is not None or fault is not None:
            self._outcome(fault)

    def _noted(self, files: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add how far the script's own files are, unless that was noted when the state was taken."""
        noted = None if note.FILES in files else note.take(str(self.checkpoints.folder))
        return files if noted is None else {**files, note.FILES: noted}

    def _write(
        self,
        step: int,
        files: Mapping[str, Any],
        report: Callable[[str], object],
        in_memory: Mapping[str, Any] | None = None,
    ) -> None:
        name = self.checkpoints.save(step, files, report, in_memory)
        self._written(name)
        self.checkpoints.prune()
        self._size = self.checkpoints.size()

    def _measured(self, began: float, stood_until: float) -> None:
        self._stood_s, self._took_s = stood_until - began, self._clock() - began
        self._since = max(self._since, began)


def _between_failures_s(text: str) -> float:
    try:
        found = float(text or BETWEEN_FAILURES_S)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise SystemExit(
            f"RESHAPE_MTBF_S must be the seconds between two failures of this training, such as 86400, or 0 to save "
            f"only when asked, not {text[:80]!r}"
        )
    return found


def _reason(fault: Exception | None) -> str:
    """Return why a save failed, in the same words for each step; empty if none has."""
    if fault is None:
        return ""
    cause = fault.__cause__ or fault
    return getattr(cause, "strerror", None) or str(cause) or repr(cause)
