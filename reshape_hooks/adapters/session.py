"""What all trainings of one process share: how they are asked to stop, where they save, their GPUs and their pace.

Promises: a process says of each of its trainings whether it resumes (`Announced`), and holds the lock of each of its
GPUs once; each training has checkpoints of its own (`claims`). Called by `elastic` and the adapters, from Python 3.8.
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
    """The training cannot be resumed exactly and stays as it is; the one argument is the reason, for a sentence."""


class Session:
    """The trainings of this process, one after the other. Make it once it is known that the training can be resumed.

    Of several processes that train together, `ranks`, all stop after the same step, and rank 0 speaks and saves.
    """

    before = 0  # steps of the trainings that have ended before the present one

    def __init__(self, together: ranks.Ranks) -> None:
        self.ranks = together
        here = plain.environment()
        self.here = here._replace(gpus=here.gpus[together.local_rank :: together.local_size])
        self.stop = plain.StopFlag(only_143=True)
        together.any(False)  # from now on all hear signals, and rank 0 may announce it
        self.announced = Announced(self.stop, here.announce if together.rank == 0 else None)
        self.pace = plain.Pace(self.here.step_seconds)
        self.locks = GpuLocks(self.here)
        self.labels = {"emulated": "yes"} if self.here.emulated else {}
        self._leaves = False
        atexit.register(self._at_exit)  # early, so that it runs behind what the script registers

    def _at_exit(self) -> None:
        if self._leaves:
            with contextlib.suppress(Exception):  # classes of the script, which may raise when they are looked at
                quick_exit.leave_garbage()

    def begin(self, resumed: bool) -> None:
        """A training begins: from now on SIGTERM is answered after a step. `resumed`: from a checkpoint of it."""
        self.announced.begin(resumed)
        self.pace.start()

    def step(self, step: int, total: int | None, **values: Any) -> None:
        """A step was computed: wait until it would have ended on an emulated GPU, and report it."""
        self.announced.stepped()
        self.pace.wait()
        self.locks.used(step)
        counts = {"step": self.before + step, **({} if total is None else {"total": self.before + total})}
        if self.ranks.rank == 0:
            plain.say(**counts, **values, **self.labels)

    def asked(self, due: bool = False) -> tuple[bool, bool]:
        """Agree with all ranks whether one is asked to stop, and whether one is asked to save, or it is `due`.

        Act on the answer, not on the flag: a signal may set that after the question, and is answered at the next one.
        What was not saved yet is saved, since it is announced only then. After a failure the next try waits.
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
        """A training is over: save it; a stop that was asked for before ends the process.

        One that is asked for later waits for the next training's first step, or for the end of the script, which has
        finished then: no line behind a training is begun that a stop could break off. Where it cannot be saved the
        script goes on all the same, to what it does with its result.
        """
        saved = self.announced.saved(save)
        if self.ranks.rank == 0:
            checkpoints.finish(steps)
        stopping, _ = self.asked()
        self.announced.end(saved)
        if saved and stopping:
            self.leave()

    def leave_saved(self, save: Callable[[], None]) -> None:
        """Save and end the process, as it is asked to; where it cannot be saved it goes on, and tries again."""
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
    """End before PyTorch takes its threads down, which sometimes aborts a process that trained with others."""
    plain.flush()
    os._exit(plain.STOPPED)


_sessions: list[Session] = []


def met() -> ranks.Ranks:
    """Return all processes of this training. Raises LeftAlone where they have not met, or have met in JAX."""
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

    `describe`: returns what the training is known by (`claims.description`). Of several processes rank 0 claims for
    all, and all others take what it found.
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
    checkpoints = claims.take(mine)
    Session.before = checkpoints.before
    return checkpoints


def of_torch(model: Any) -> list[Any]:
    """Return names and shapes of all that a model of PyTorch keeps; its first batch gives some their shape."""
    found: list[Any] = []
    for name, value in model.state_dict().items():
        given = "Uninitialized" not in type(value).__name__ and hasattr(value, "shape")
        found.append((name, tuple(value.shape) if given else ()))
    return found


def first_weights(parameters: Iterable[Any]) -> list[Any]:
    """Return the beginning of a model's first parameter, of PyTorch: nothing else has to leave its GPU for a claim."""
    for one in parameters:
        with contextlib.suppress(Exception):  # it has no values yet, or its kind cannot be read so
            return [one.detach().reshape(-1)[: claims.MOST_READ].cpu()]
        break
    return []


def settings_of(optimizer: Any) -> dict[str, Any]:
    """Return the settings of an optimizer of PyTorch, by group."""
    groups = getattr(optimizer, "param_groups", ())
    return {
        f"{name} {number}": value
        for number, group in enumerate(groups)
        for name, value in sorted(group.items())
        if name != "params" and isinstance(value, (int, float, str, tuple, type(None)))
    }


def scratch(checkpoints: plain.Checkpoints, step: int) -> Path:
    """Return a new folder for the files that a library writes of this step, gone when the checkpoints are pruned."""
    folder = checkpoints.folder / f"{plain.TEMPORARY}g{checkpoints.generation}-s{step}-files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def written(checkpoints: plain.Checkpoints, step: int, write: Callable[[Path], None]) -> Path:
    """Return a new folder in which `write` has written the files of this step, in memory where that is offered."""
    memory = checkpoints.place({"written": lambda path: None})
    if memory is not checkpoints:
        folder = scratch(memory, step)
        try:
            write(folder)
        except Exception:  # it is full: each library raises an error of its own then
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return folder
    folder = scratch(checkpoints, step)
    write(folder)
    return folder


def copier(file: Path) -> Callable[[str], None]:
    """Return what gives `Checkpoints.save` a file. It stays: a save that fails in memory is made on the disk."""

    def copy(path: str) -> None:
        try:
            os.link(file, path)
        except OSError:  # on another file system
            shutil.copy2(file, path)

    return copy


def refuse_several() -> None:
    """Raise LeftAlone where the script trains in several processes."""
    if ranks.several():
        raise LeftAlone(SEVERAL)


def refuse_split(model: Any) -> None:
    """Raise LeftAlone where this process has the layers of its model on several GPUs."""
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
