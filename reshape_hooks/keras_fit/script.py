"""Manages all calls of `fit` in one script: which have finished, which one runs, what is saved of them.

Promises: a restarted script gets back at once what finished calls of `fit` had produced, and the one that was stopped
resumes at its next batch; until a `fit` has done its first batch, SIGTERM ends the script as usual; a job is announced
as resumable only once all that its training changes is known. Called by `adapter`.
"""

from __future__ import annotations

import inspect
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keras.callbacks import CallbackList
from keras.src.trainers.epoch_iterator import EpochIterator

from reshape_hooks import claims, plain, seeds
from reshape_hooks.adapters import ranks
from reshape_hooks.announced import TAKEN, Announced
from reshape_hooks.files import note, replay
from reshape_hooks.keras_fit import replicas, variables
from reshape_hooks.keras_fit.call import Call, file_of
from reshape_hooks.locks import GpuLocks
from reshape_hooks.periodic.saver import Saver

MOST_KEPT = 8 << 30  # bytes that finished fits may take beside the running one
FITS = "fits.pickle"
FORMAT = 4  # version of FITS, incremented with each new field that a resumed fit needs; 1 had none written
NO_SCRIPT = 3  # the format before kept no variables of the script
BY_ORDER, RUNNING = 2, "running.npz"  # the format before knew fits by order only; where it kept the running one
PARAMETERS = "self x y batch_size epochs verbose callbacks validation_split validation_data shuffle class_weight"
PARAMETERS += " sample_weight initial_epoch steps_per_epoch validation_steps validation_batch_size validation_freq"
USED = ("_enumerate_iterator", "_get_iterator", "reset", "num_batches")
SEVERAL = "it trains in several processes; a loop that stops them together is in examples/keras_gang.py"
MANY_PROCESSES = ("TF_CONFIG", "PET_NNODES", *ranks.SIZES)  # tells a process of a gang about the others


def fit(trainer: Any, theirs: Callable[..., Any], model: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Run `theirs(model, *args, **kwargs)`, saved and resumed where possible. `trainer`: Keras' module."""
    script = Script.this()
    try:
        given = inspect.signature(theirs).bind(model, *args, **kwargs)
    except TypeError:
        return theirs(model, *args, **kwargs)  # which reports what is wrong
    given.apply_defaults()
    try:
        if script.takes(theirs, given.arguments):
            return Call(script, trainer, theirs, given.arguments).run()
    except plain.CheckpointError as error:
        raise SystemExit(str(error)) from error  # a script may catch others, and continue from zero
    return theirs(model, *args, **kwargs)


class Script:
    """What this process knows of its fits."""

    _this: Script | None = None

    def __init__(self) -> None:
        self.here = plain.environment()
        self.saver: Any = None  # and the checkpoints, once a fit is ours
        self.checkpoints: Any = None
        self.steps = 0  # done in finished fits
        self.begun: set[int] = set()  # numbers of this process's fits
        self.left_alone = self.inside = False
        self.reports = False  # whether a fit has shown nothing: once reports count, all fits report
        self.announced: Any = None  # once the signals are ours
        self.safe = True  # a stop between two fits would lose nothing finished
        self.fits: dict[int, Any] = {}  # what is saved of each, by number: that it has ended, or its position
        self.kept: dict[str, Path | bytes] = {}  # their files
        self.saved: plain.Saved | None = None  # the checkpoint from which both were read

    @classmethod
    def this(cls) -> Script:
        if cls._this is None:
            cls._this = cls()
        return cls._this

    def takes(self, theirs: Any, given: Mapping[str, Any]) -> bool:
        """Return whether this call is ours; False if the script, or another fit, handles signals itself."""
        alien = self.left_alone or isinstance(given["callbacks"], CallbackList)
        handled = not self._ours() and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        if self.inside or seeds.in_worker():
            return False
        if threading.current_thread() is not threading.main_thread():
            return self.leave("it is not called by the main thread")
        if alien or handled:
            if handled and self.announced is None and not _is_of_ours(signal.getsignal(signal.SIGTERM)):
                return self.leave("the script has a handler for SIGTERM of its own")
            if self.announced is not None:  # by an earlier fit
                self.announced.leave_alone(TAKEN if handled else "this fit is not one that can be resumed")
            return False
        if any(os.environ.get(name, "1") != "1" for name in MANY_PROCESSES):
            return self.leave(SEVERAL)
        strategy = type(given["self"].distribute_strategy).__name__
        if strategy not in replicas.KNOWN:
            called = strategy.replace("CollectiveAllReduce", "MultiWorkerMirrored").replace("V2", "")
            return self.leave(f"it trains under {called}")
        as_known = " ".join(inspect.signature(theirs).parameters) == PARAMETERS
        if not as_known or not all(hasattr(EpochIterator, name) for name in USED):
            return self.leave("this version of Keras is not known")
        self._load()
        return True

    def leave(self, why: str) -> bool:
        """Report why this script is not resumed, and leave this fit and all later ones alone. Returns False."""
        if not self.left_alone:
            replay.left_alone()
            plain.warn(f"reshape: `fit` cannot be resumed exactly and is left alone, because {why}")
        self.left_alone = True
        if self.announced is not None:
            self.announced.leave_alone(why)
        return False

    def take_signals(self, resumed: bool) -> Announced:
        """Remember this job's signals from now on, also between fits. `resumed`: this fit, from what was saved of it.

        What a script does after its last `fit` mostly takes seconds; SIGTERM waits for its end, or for the next one.
        """
        if self.announced is None:
            self.announced = Announced(plain.StopFlag(only_143=True), self.here.announce)
        self.announced.begin(resumed)
        found: Announced = self.announced
        return found

    def _ours(self) -> bool:
        return self.announced is not None and self.announced.stop.ours()

    def number(self, mine: dict[str, Any]) -> int:
        """Return the number of the fit with this description: that of a saved one, or a new one."""
        left = [one for number, one in self.fits.items() if number not in self.begun]
        by_order = [one for one in left if "process" not in one["known_by"]]
        told = [{**one["known_by"], "number": one["index"]} for one in left if one not in by_order]
        found = claims.choose(mine, told)
        if found is None and by_order:
            found = {"number": min(one["index"] for one in by_order)}
        number = found["number"] if found else max([-1, *self.fits, *self.begun]) + 1
        self.begun.add(number)
        return int(number)

    def save(self, call: Call, record: dict[str, Any], found: list[Any]) -> None:
        """Save this running call and all others. Raises CheckpointError."""
        self.saver.finish()
        self.saver.now(self.steps + call.steps, self._files(call, record, found, False))

    def save_beside(self, call: Call, record: dict[str, Any], found: list[Any]) -> None:
        """Do the same, written while the call continues. Raises CheckpointError."""
        self.saver.beside(self.steps + call.steps, lambda in_memory: self._files(call, record, found, in_memory))

    def save_ended(self, call: Call, record: dict[str, Any], found: list[Any]) -> None:
        """Save this finished call with all others. Raises CheckpointError."""
        self.saver.finish()
        values = variables.in_memory(variables.read(found, call.before_validation))
        self.fits[call.index] = record
        self.kept[file_of(call.index)] = values
        self.steps += call.steps
        self.saver.now(self.steps, self._kept_files({}))
        self._limit()

    def _files(self, call: Call, record: dict[str, Any], found: list[Any], in_memory: bool) -> dict[str, Any]:
        values = variables.read(found, call.before_validation)
        write = variables.in_memory(values) if in_memory else lambda path: variables.write_file(path, values)
        noted = {note.FILES: call.noted} if call.noted else {}
        return {**self._kept_files({call.index: record}), file_of(call.index): write, **noted}

    def _kept_files(self, running: dict[int, Any]) -> dict[str, Any]:
        files: dict[str, Any] = {file: _copier(source) for file, source in self.kept.items()}
        state = {"format": FORMAT, "fits": {**self.fits, **running}}
        return {**files, FITS: pickle.dumps(state, protocol=4)}

    def _written(self, name: str) -> None:
        """Update paths: what was kept is in this newest checkpoint too, and is deleted with the older one."""
        folder = self.checkpoints.folder / name
        self.kept.update({file: folder / file for file in self.kept if (folder / file).exists()})

    def _limit(self) -> None:
        """Drop the results of the first fits if all together are too large; they are repeated after a stop."""
        while len(self.fits) > 1 and sum(map(_size, self.kept.values())) > MOST_KEPT:
            first = min(self.fits)
            del self.fits[first]
            self.kept.pop(file_of(first), None)
            plain.warn(f"reshape: what `fit` number {first + 1} made is too large to keep; a stop repeats it")

    def _load(self) -> None:
        """Claim our checkpoints and read the newest good one, once. Raises CheckpointError."""
        if self.checkpoints is not None:
            return
        self.checkpoints = claims.claim_checkpoints(claims.description(trained="Keras", placed=False))
        self.saver = Saver(self.checkpoints, written=self._written, outcome=lambda fault: self.announced.outcome(fault))
        saved = self.checkpoints.newest(self.checkpoints.prefer)
        if saved is None:
            return
        if not (saved.path / FITS).exists():
            raise plain.CheckpointError(
                f"checkpoint {saved.name} was saved by another hook than that of a plain `fit`: "
                f"use the one that saved it, or empty {self.checkpoints.folder} to begin again"
            )
        state = pickle.loads((saved.path / FITS).read_bytes())
        if (found := state.get("format", 1)) not in (FORMAT, NO_SCRIPT, BY_ORDER):
            raise plain.CheckpointError(
                f"checkpoint {saved.name} was saved by another version of volcano-reshape (its positions are of format "
                f"{found}, this version reads {FORMAT}) and is kept as it is: let that version finish this job, "
                f"or empty {self.checkpoints.folder} to begin again"
            )
        if found == BY_ORDER:
            state["fits"] = {index: {**one, "ended": True, "known_by": {}} for index, one in state["ended"].items()}
            if running := state["running"]:
                state["fits"][running["index"]] = {**running, "ended": False, "known_by": {}}
                self.kept[file_of(running["index"])] = saved.path / RUNNING
        self.fits, self.saved = state["fits"], saved
        # Including fits that are now skipped.
        self.steps = sum(one["steps"] for one in self.fits.values() if one["ended"])
        files = {file_of(number): saved.path / file_of(number) for number in self.fits}
        self.kept.update({file: path for file, path in files.items() if path.exists()})

    def restored(self, call: Call) -> None:
        """Note that a call is at its place again; if it is the last one begun, restore the script's files."""
        running = [number for number, one in self.fits.items() if not one["ended"]]
        last = running[0] if running else max(self.fits, default=-1)
        if call.index == last:
            saved, self.saved = self.saved, None
            replay.resumed(saved)

    def locks(self) -> GpuLocks:
        """Return the evidence of GPU use, created once."""
        if not hasattr(self, "_locks"):
            self._locks = GpuLocks(self.here)
        return self._locks


def _is_of_ours(handler: Any) -> bool:
    """Return whether it is the handler of a script that saves with `plain` and has announced itself."""
    return isinstance(getattr(handler, "__self__", None), plain.StopFlag)


def _copier(source: Path | bytes) -> Any:
    """Return a function that gives `Checkpoints.save` the file: a hard link where the file system has them."""
    if isinstance(source, bytes):
        return source

    def copy(path: str) -> None:
        try:
            os.link(source, path)
        except OSError:
            shutil.copy2(source, path)

    return copy


def _size(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size
