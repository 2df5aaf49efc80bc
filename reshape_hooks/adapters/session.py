"""Holds what all trainings of one process share: how they are stopped, where they save, their GPUs and their pace.

Promises: a process announces for each of its trainings whether it resumes (`Announced`), and locks each of its GPUs
once; each training has its own checkpoints (`claims`). Called by `elastic` and the adapters, from Python 3.8.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from reshape_hooks import claims, plain, sure_end
from reshape_hooks.adapters import quick_exit, ranks
from reshape_hooks.announced import Announced
from reshape_hooks.files import replay
from reshape_hooks.locks import GpuLocks

IN_THREAD = (
    "it trains in a thread that is not the main one, where Python hears no signal: train in the main thread, and let "
    "threads do what goes on beside it"
)
SEVERAL = "it trains in several processes; a loop that stops them together is in examples/torch_digits.py"


class LeftAlone(Exception):
    """Raised when a training cannot be resumed exactly and is left alone; the argument is why, to end a sentence."""


class Session:
    """The trainings of this process, in sequence. Create it once the training is known to be resumable.

    With several processes that train together (`ranks`), all stop after the same step, and rank 0 reports and saves.
    """

    before = 0  # steps of the trainings that ended before the present one

    def __init__(self, together: ranks.Ranks) -> None:
        self.ranks = together
        here = plain.environment()
        self.here = here._replace(gpus=here.gpus[together.local_rank :: together.local_size])
        self.stop = plain.StopFlag(only_143=True)
        together.any(False)  # from now on all receive signals, so rank 0 may announce it
        self.announced = Announced(self.stop, here.announce if together.rank == 0 else None)
        self.pace = plain.Pace(self.here.step_seconds)
        self.locks = GpuLocks(self.here)
        self.labels = {"emulated": "yes"} if self.here.emulated else {}
        self._leaves = False
        atexit.register(self._at_exit)  # early, so that it runs after what the script registers

    def _at_exit(self) -> None:
        if self._leaves:
            with contextlib.suppress(Exception):  # classes of the script may raise when inspected
                quick_exit.leave_garbage()

    def begin(self, resumed: bool) -> None:
        """Begin a training: from now on SIGTERM is answered after a step. `resumed`: from its own checkpoint."""
        self.announced.begin(resumed)
        self.pace.start()

    def step(self, step: int, total: int | None, **values: Any) -> None:
        """Report a computed step, after waiting until it would have ended on an emulated GPU."""
        self.announced.stepped()
        self.pace.wait()
        self.locks.used(step)
        counts = {"step": self.before + step, **({} if total is None else {"total": self.before + total})}
        if self.ranks.rank == 0:
            plain.say(**counts, **values, **self.labels)

    def asked(self, due: bool = False) -> tuple[bool, bool]:
        """Agree with all ranks whether any is asked to stop, and whether any is asked to save, or `due`.

        Act on the answer, not on the flag: a signal may set that afterwards, and is answered at the next call. An
        unsaved training is saved at once, since it is announced only then. After a failure the next attempt is delayed.
        """
        due = (due and self.announced.may_try()) or self.announced.untried()
        stopping, saving = self.ranks.any(self.announced.stopping(), self.stop.take_save() or due)
        return stopping, saving

    def save_once(self, save: Callable[[], None]) -> None:
        """Let rank 0 save for all. Raises CheckpointError in all ranks if that fails."""
        fault = ""
        try:
            if self.ranks.rank == 0:
                save()
        except Exception as error:
            if self.ranks.size == 1:
                raise
            fault = str(error) or repr(error)
        fault = self.ranks.share(fault)
        if fault:
            raise plain.CheckpointError(fault)

    def end(self, steps: int, save: Callable[[], None], checkpoints: claims.OfTraining) -> None:
        """End a training: save it; a stop that was requested before ends the process.

        A later stop waits for the next training's first step, or for the end of the script, which has then finished: no
        line after a training begins that a stop could interrupt. If saving fails, the script continues anyway, to
        whatever it does with its result.
        """
        saved = self.announced.saved(save)
        if self.ranks.rank == 0:
            checkpoints.finish(steps)
        stopping, _ = self.asked()
        self.announced.end(saved)
        if saved and stopping:
            self.leave()

    def leave_saved(self, save: Callable[[], None]) -> None:
        """Save and end the process as requested; if saving fails, continue and try again later."""
        if self.announced.saved(save):
            self.leave()

    def leave(self) -> NoReturn:
        """End the process, whose training is saved."""
        self.stop.leaving()
        if self.ranks.size > 1:
            atexit.register(_end_at_once)
        quick_exit.leave_driver_as_it_is()
        self._leaves = True
        raise sure_end.see_through(plain.STOPPED, plain.warn).to_raise()


def _end_at_once() -> None:
    """End before PyTorch tears down its threads, which sometimes aborts a process that trained with others."""
    plain.flush()
    os._exit(plain.STOPPED)


_sessions: list[Session] = []


def met() -> ranks.Ranks:
    """Return all processes of this training. Raises LeftAlone if they are not connected, or connected through JAX."""
    jax = sys.modules.get("jax")
    if jax is not None and getattr(jax.distributed, "is_initialized", lambda: True)() and jax.process_count() > 1:
        raise LeftAlone("its processes have met by jax.distributed, through which they cannot stop together")
    try:
        return _sessions[0].ranks if _sessions else ranks.Ranks()
    except ranks.NotMet:
        raise LeftAlone("its processes have not met yet: init_process_group comes first") from None


def of_process(together: ranks.Ranks | None = None) -> Session:
    """Return the session of this process."""
    if not _sessions and threading.current_thread() is not threading.main_thread():
        raise LeftAlone(IN_THREAD)
    if not _sessions:
        _sessions.append(Session(together or ranks.Ranks()))
    return _sessions[0]


def claim(
    describe: Callable[[], dict[str, Any]], together: ranks.Ranks | None = None
) -> tuple[claims.OfTraining, plain.Saved | None]:
    """Return where this training saves, and what it resumes from. Raises CheckpointError.

    `describe`: returns what identifies the training (`claims.description`). With several processes, rank 0 claims for
    all, and the others take its result.
    """
    here = plain.environment()
    if together is None or together.size == 1:
        checkpoints = _taken(describe())
        return checkpoints, checkpoints.newest(checkpoints.prefer)
    found: tuple[int, plain.Saved | None] | None = None
    if together.rank == 0:
        checkpoints = _taken(describe())
        found = checkpoints.number, checkpoints.newest(checkpoints.prefer)
    number, saved = together.share(found)
    return claims.OfTraining(here, number), saved


def _taken(mine: dict[str, Any]) -> claims.OfTraining:
    checkpoints = claims.claim_checkpoints(mine)
    Session.before = checkpoints.before
    return checkpoints


def of_torch(model: Any) -> list[Any]:
    """Return names and shapes of all that a PyTorch model saves; lazy layers get their shape from the first batch."""
    found: list[Any] = []
    for name, value in model.state_dict().items():
        given = "Uninitialized" not in type(value).__name__ and hasattr(value, "shape")
        found.append((name, tuple(value.shape) if given else ()))
    return found


def first_weights(parameters: Iterable[Any]) -> list[Any]:
    """Return the beginning of a PyTorch model's first parameter: nothing else has to leave its GPU for a claim."""
    for one in parameters:
        with contextlib.suppress(Exception):  # it has no values yet, or its kind cannot be read this way
            return [one.detach().reshape(-1)[: claims.MOST_READ].cpu()]
        break
    return []


def settings_of(optimizer: Any) -> dict[str, Any]:
    """Return the settings of a PyTorch optimizer, by group."""
    groups = getattr(optimizer, "param_groups", ())
    return {
        f"{name} {number}": value
        for number, group in enumerate(groups)
        for name, value in sorted(group.items())
        if name != "params" and isinstance(value, (int, float, str, tuple, type(None)))
    }


def scratch(checkpoints: plain.Checkpoints, step: int) -> Path:
    """Return a new folder for a step's files written by a library; pruned with the checkpoints."""
    folder = checkpoints.folder / f"{plain.TEMPORARY}g{checkpoints.generation}-s{step}-files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def written(checkpoints: plain.Checkpoints, step: int, write: Callable[[Path], None]) -> Path:
    """Return a new folder in which `write` has written a step's files, in memory if that is offered."""
    memory = checkpoints.place({"written": lambda path: None})
    if memory is not checkpoints:
        folder = scratch(memory, step)
        try:
            write(folder)
        except Exception:  # it is full: each library then raises its own error
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return folder
    folder = scratch(checkpoints, step)
    write(folder)
    return folder


def copier(file: Path) -> Callable[[str], None]:
    """Return a function that gives `Checkpoints.save` a file.

    The file stays: a save that fails in memory is redone on disk.
    """

    def copy(path: str) -> None:
        try:
            os.link(file, path)
        except OSError:  # on another file system
            shutil.copy2(file, path)

    return copy


def refuse_several() -> None:
    """Raise LeftAlone if the script trains in several processes."""
    if ranks.several():
        raise LeftAlone(SEVERAL)


def refuse_split(model: Any) -> None:
    """Raise LeftAlone if this process has its model's layers on several GPUs."""
    mapped = (getattr(model, "hf_device_map", None) or {}).values()
    places = {str(one) for one in mapped or (part.device for part in model.parameters())}
    if len(places - {"cpu", "disk", "meta"}) > 1:
        raise LeftAlone("its layers are split among several GPUs, and may not run on another number of them")


def refuse_other_masters() -> None:
    """Raise LeftAlone where the script answers SIGTERM itself."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler != signal.SIG_DFL and not any(one.stop.ours() for one in _sessions):
        raise LeftAlone("it has a handler for SIGTERM of its own")


def tell_left_alone(why: LeftAlone) -> None:
    replay.left_alone()
    for one in _sessions:
        one.announced.leave_alone(str(why))
    plain.warn(f"reshape: this training keeps its GPUs until it ends, because {why}")
