"""Saves a training periodically, so that a crash costs little: how often, and concurrently with the training.

Promises: what is saved is the state of one step, taken between two; no part of the training waits for the disk if
memory allows that; one save is written at a time, and the one requested by a stop comes after it. Called by `Elastic`,
the adapters and `keras_fit` between two steps. Standard library and `plain`, Python 3.8 and newer; times are seconds.
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

BETWEEN_FAILURES_S = 86_400.0  # of one training, unless its environment says otherwise
USUAL_SAVE_S = 0.02  # until measured, and where it takes less: nobody needs saves more often than that implies
SLOWS_BY = 0.05  # share of a concurrent save's duration that the training is assumed to lose
MEMORY_SHARE = 4  # at most 1/MEMORY_SHARE of the free bytes is used for a concurrent save


class Saver:
    """Writes one training's checkpoints: when asked, and by the clock. Not thread-safe."""

    def __init__(
        self,
        checkpoints: plain.Checkpoints,
        variables: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = plain.boottime,
        written: Callable[[str], None] = lambda name: None,
        outcome: Callable[[Exception | None], object] = lambda fault: None,
    ) -> None:
        """Set up the saver. Raises SystemExit with a sentence if RESHAPE_MTBF_S is unusable.

        `written`: called with the name of each new checkpoint before an older one is deleted, in any thread. `outcome`:
        called in the training's thread with None after each save that is on disk, and with the fault of a failed
        concurrent one; faults of others are raised to the caller.
        """
        self.checkpoints, self._clock, self._written, self._outcome = checkpoints, clock, written, outcome
        self.between_failures_s = _between_failures_s(variables.get("RESHAPE_MTBF_S", ""))
        self._stood_s = self._took_s = USUAL_SAVE_S  # of the last save: stall of the training, total time
        self._size = 0  # bytes of the newest checkpoint; 0: unknown
        self._since = clock()
        self._thread: threading.Thread | None = None
        self._lines: list[str] = []
        self._fault: Exception | None = None
        self._said = ""  # why saves have failed since the last successful one

    @property
    def every_s(self) -> float:
        """Return the seconds between two saves: infinite if there are no periodic ones."""
        if not self.between_failures_s:
            return math.inf
        costs_s = self._stood_s + SLOWS_BY * (self._took_s - self._stood_s)
        return interval_s(max(USUAL_SAVE_S, costs_s), self.between_failures_s)

    def begin(self) -> None:
        """Note that the training begins: what came before need not be saved."""
        self._since = self._clock()

    def due(self) -> bool:
        """Return whether it is time to save. Call it after each step: it also reports a save completed since."""
        watch.step_done()
        if self._thread is not None:
            if self._thread.is_alive():
                return False
            self.finish()
        return self._clock() - self._since >= self.every_s

    def now(self, step: int, files: Mapping[str, Any], in_memory: Mapping[str, Any] | None = None) -> None:
        """Save these files, as `plain.Checkpoints.save` takes them; durable on return. Raises CheckpointError.

        `in_memory`: the files for memory, where offered and different. Call `finish` first if they are created in the
        checkpoints' folder: it is pruned after each save.
        """
        self.finish()
        began = self._clock()
        self._write(step, self._noted(files), plain.tell, in_memory and self._noted(in_memory))
        self._said = ""
        self._measured(began, self._clock())
        self._outcome(None)

    def beside(self, step: int, make: Callable[[bool], Mapping[str, Any]]) -> None:
        """Take the state of this step, and write it while training continues, if memory allows that.

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
        except RuntimeError:  # no more threads, or the interpreter is shutting down
            self._thread = None
            write()
            self.finish()

    def finish(self) -> None:
        """Wait for what is still being written, and report it: also a failure, which training survives."""
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
        """Add how far the script's own files are, unless noted when the state was taken."""
        noted = None if note.FILES in files else note.take_note(str(self.checkpoints.folder))
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
