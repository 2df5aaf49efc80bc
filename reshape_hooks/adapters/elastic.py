"""Makes a custom training loop elastic in three lines: its state, and what it iterates over.

    state = reshape_hooks.Elastic(model=model, optimizer=optimizer)
    for epoch in state.epochs(10):
        for x, y in state.batches(loader):

Promises: the loop stops after a step, whose state is saved, and resumes with the next step, with the same order of
samples and the same random numbers; each step is reported. Several processes connected by `torch.distributed` stop
after the same step; rank 0 saves. Called by training scripts; standard library only, PyTorch where the script uses it,
Python 3.8 and newer.
"""

from __future__ import annotations

import builtins
import io
import itertools
import pickle
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from reshape_hooks import claims, plain, seeds, sure_end
from reshape_hooks.adapters import gpu_state, own_attributes, pytrees, session
from reshape_hooks.adapters.gradients import Gradients, mean
from reshape_hooks.adapters.not_given import NotGiven
from reshape_hooks.adapters.rebound import Rebound
from reshape_hooks.adapters.script_iterators import HeldIterators, iterators
from reshape_hooks.adapters.side_by_side import read_beside_ours
from reshape_hooks.adapters.trained_parts import TrainedParts
from reshape_hooks.adapters.variables import IN_A_DICTIONARY, Variables, copies, refill, refill_in_place, refuse_lost
from reshape_hooks.files import replay
from reshape_hooks.periodic.saver import Saver

if TYPE_CHECKING:
    from reshape_hooks.adapters.script_frames import Kept

STATE = "state.pkl"
ZIP = b"PK"  # prefix of torch.save's files
SHARDED = ("FullyShardedDataParallel", "DeepSpeedEngine", "ZeroRedundancyOptimizer")
OTHER_ORDER = (
    "its data come from a {}, which may give them in another order after a stop: let state.batches(...) have a list, a "
    "range or a DataLoader of PyTorch itself"
)

SECOND_LOOP = (
    "its script asks one Elastic for a second loop, whose steps are counted on from the first one: write one loop of "
    "all epochs, or make another Elastic(...) behind the first loop for the second one"
)
SECOND_BATCHES = (
    "its script asks for state.batches(...) a second time within an epoch, where one place is kept: validate with the "
    "loader itself, and call state.batches(...) once in each epoch of state.epochs(...)"
)

enumerate_ = builtins.enumerate
went_on: list[tuple[int, int]] = []  # per loop that has begun: steps of it done before, and of all loops


class Counting(builtins.enumerate):  # type: ignore[type-arg]
    """Replaces `enumerate` until a loop has resumed: adds what that had counted before the stop."""

    _done: int | None = None

    def __next__(self) -> tuple[int, Any]:
        loops = len(went_on)
        count, value = super().__next__()
        begun = went_on[loops:]
        if begun and self._done is None:  # this is, or wraps, a loop's iterator, or that of a nested loop
            self._done = begun[0][0] if len(begun) == 1 else begun[-1][1]
        return count + (self._done or 0), value


class Elastic:
    """The state of a training: dictionaries, and objects with `state_dict` and `load_state_dict`.

    It is saved when a stop or a checkpoint is requested, periodically, after each epoch and at the end, and restored
    when this object is created: create it after its parts and before the first step. With several processes, all get
    rank 0's state. Raises TypeError for anything else, SystemExit if each process holds a part of the state or the
    processes are not connected, CheckpointError if everything that was saved is damaged. Its loops raise SystemExit if
    the script draws from an iterator of its own.

    `first_start` is True until something has been saved. Put what must be done once, such as creating an output folder
    that must not exist yet, under `if state.first_start:`, between this object and the first step: it is saved as done.
    """

    def __init__(self, **parts: Any) -> None:
        for name, part in parts.items():
            if isinstance(part, dict) or pytrees.is_of_nnx(part):
                continue
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                kind = type(part).__name__
                raise TypeError(f"{name} is a {kind}: Elastic keeps dictionaries, and objects that have a state_dict")
        try:
            session.refuse_other_masters()
            self._parts = {name: _whole(part) for name, part in parts.items()}
            self._run = session.of_process(session.met())
        except session.LeftAlone as why:
            raise _refused(why) from None
        seeds.begin()
        self._ranks = self._run.ranks
        self._checkpoints, saved = session.claim(self._description, self._ranks)
        self.first_start = not saved
        self._saver = Saver(self._checkpoints, outcome=self._run.announced.outcome)
        self._step = self._total = self._epoch = self._epochs = self._batch = 0
        self._waiting: dict[str, Any] = {}  # of `_own`, until a loop resumes
        self._begun: dict[str, Any] = {}  # what was there when this epoch began, before the script prepared its batches
        self._saved_parts: dict[str, Any] = {}  # saved values of what the script changes before its loop resumes
        self._samples: int | None = None  # of a batch in all processes together, if known
        self._cursor: Any = None
        self._place: Any = None
        self._resumed = bool(saved)
        self._loops = self._batches = 0  # how often this process requested a loop, and in this epoch batches
        self._apart = [*parts.values(), *self._parts.values(), self]  # not variables of the script
        self._not_given = NotGiven([*parts.values(), *self._parts.values()])
        beside = self._not_given.new_modules()
        self._objects = _with_attributes([*self._parts.items(), *beside])
        self._variables = Variables(self._apart, objects=self._objects)
        self._held_iterators = HeldIterators()
        self._gradients = Gradients(self._parts)
        self._rebound = Rebound(self._parts)
        self._rebound.look()
        self._rebound.leaves()
        self._trained = TrainedParts(self._parts)
        self._trained.add(beside)
        self._trained_at_stop: dict[str, Any] = {}
        self._iteration: int | None = None  # accelerate's epoch counter of its loader, by which it shuffles
        self._saved = saved
        if saved:
            self._load(saved)
            vars(builtins)["enumerate"] = Counting
        self._run.begin(resumed=saved is not None)
        self._saver.begin()

    def steps(self, total: int) -> Iterator[int]:
        """Yield the remaining steps, counted from 0; each is over when the next one is requested."""
        self._begin_loop()
        self._total = total
        self._leave_if_asked()
        self._goes_on(self._step)
        if self._resumed and self._step >= total:
            replay.ended_before()
        while self._step < total:
            yield self._step
            self._done()
        self._end()

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the remaining epochs, counted from 0, the first of them for the rest of its batches."""
        self._begin_loop()
        self._epochs = total
        self._leave_if_asked()
        self._begun = self._waiting.get("begun", {})
        self._look_at_script()
        self._variables.share_with(self._rebound.now_or_given())
        self._variables.begin(self._begun.get("variables"))
        went_on.append((self._epoch, self._step))
        if self._begun and self._epoch < total:
            self._set_back()
        else:
            self._restore_files()
            self._set_layers_again()
            if self._resumed and self._epoch >= total:
                replay.ended_before()
        while self._epoch < total:
            self._begun = self._begun or self._epoch_begins()
            self._rebound.leaves()
            self._batches = 0
            self._not_given.epoch_begins()
            self._variables.epoch_begins()
            self._held_iterators.epoch_begins()
            yield self._epoch
            self._epoch += 1
            self._batch, self._cursor, self._begun = 0, None, {}
        self._end()

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the remaining batches of this epoch, from a DataLoader or anything that repeats its order."""
        self._batches += 1
        if self._batches > 1:
            raise _refused(session.LeftAlone(SECOND_BATCHES))
        self._total = self._epochs * len(loader)
        changed = self._find_sample_again(loader)
        self._goes_on(self._batch)
        if changed and self._ranks.rank == 0:  # only now: what is printed before may be rows of before the stop
            plain.warn(changed)
        self._run.stop.idle = False
        for batch in self._rest(loader):
            yield batch
            self._batch += 1
            self._done()
        if self._iteration is not None:
            loader.iteration = self._iteration + 1  # even if all its batches came before a stop
        # What follows, perhaps an evaluation, is repeated after a stop, so a stop need not wait for it.
        self._run.stop.idle = self._run.announced.saved(self._save) and self._ranks.size == 1
        self._leave_if_asked()

    def _find_sample_again(self, loader: Any) -> str:
        """Count the batches of an interrupted epoch anew if a batch now has another number of samples.

        That follows the number of GPUs or processes in scripts that do not let `share` keep it. Return what to tell.
        """
        if not hasattr(loader, "batch_sampler"):
            return ""
        from reshape_hooks.adapters import order

        before = self._samples
        now = order.samples_of_batch(loader, self._ranks.size)
        self._samples = now
        if not self._batch or before is None or now is None or before == now:
            return ""
        self._batch, again = divmod(self._batch * before, now)
        place = self._waiting.get("place")
        if place:
            place.update(fetched=self._batch, drawn=self._batch, drawn_ahead=[], before=[])
        twice = f", and {again} samples of this epoch come twice" if again else ""
        return (
            f"reshape: a batch had {before} samples in all and has {now} on this number of GPUs, so that an epoch has "
            f"another number of steps{twice}: let state.share(...) or the script keep it as it is"
        )

    def _begin_loop(self) -> None:
        """Note that a loop is requested. Raises SystemExit for a second one, RuntimeError in a thread."""
        if not _is_main_thread():
            raise _refused(session.LeftAlone(session.IN_THREAD))
        self._loops += 1
        if self._loops > 1:
            raise _refused(session.LeftAlone(SECOND_LOOP))
        self._trained.loop_begins()

    def share(self, batch: int) -> int:
        """Return how many samples of a batch this process takes, so that the total batch stays the same."""
        part = -(-batch // self._ranks.size)
        if batch % self._ranks.size and self._ranks.rank == 0:
            plain.warn(
                f"reshape: a batch of {batch} does not divide by {self._ranks.size} processes: each takes {part}, and "
                "after a resize some samples of the epoch come twice or not at all"
            )
        return part

    def _rest(self, loader: Any) -> Iterator[Any]:
        if not hasattr(loader, "batch_sampler"):
            if not (self._resumed or _keeps_order(loader)):
                raise _refused(session.LeftAlone(OTHER_ORDER.format(type(loader).__name__)))
            return itertools.islice(loader, self._batch, None)
        from reshape_hooks.adapters import order

        inner = order.inner(loader)
        try:
            order.refuse(inner)
        except session.LeftAlone as why:
            raise _refused(why) from None
        place, self._place = self._place, None
        if not self._batch:
            self._iteration = getattr(loader, "iteration", None)
        elif self._iteration is not None:
            loader.iteration = self._iteration
        self._cursor = order.Cursor(lambda one: one is inner, place if self._batch else None)
        with self._cursor:
            rest = iter(loader)
            first = list(itertools.islice(rest, 1))  # accelerate's opens nothing before that
        return itertools.chain(first, rest)

    def _epoch_begins(self) -> dict[str, Any]:
        """Return what the script may use to prepare an epoch's batches, which it repeats after a stop in that epoch."""
        present = self._rebound.now_or_given()
        self._variables.share_with(present)
        dictionaries = {name: copies(part) for name, part in present.items()}
        streams = seeds.streams(devices=True)
        return {
            "streams": streams,
            "variables": self._variables.state(),
            "dictionaries": dictionaries,
            "trained": self._trained.state(),
        }

    def _set_back(self) -> None:
        """Restore what was there when the interrupted epoch began, so that the script can prepare its batches again."""
        seeds.restore(self._begun["streams"])
        self._trained.restore(self._begun.get("trained", {}))  # not in checkpoints of older versions
        for name, values in self._begun["dictionaries"].items():
            refill(self._parts[name], values)

    def _goes_on(self, done: int) -> None:
        """Begin the loop, or resume it after `done` steps: with its variables, gradients and random numbers.

        What the script has done since its epoch began it had already done before the stop.
        """
        self._restore_files()
        self._look_at_script()
        saved, self._saved_parts = self._saved_parts, {}
        dictionaries = self._rebound.now_or_given()
        self._variables.share_with(dictionaries)
        present = {**self._parts, **dictionaries}
        for name, state in saved.items():
            _set_again(present[name], state)
        self._set_layers_again()
        self._variables.begin()
        self._variables.done()
        self._variables.prepared()
        self._refuse_iterators()
        waiting, self._waiting = self._waiting, {}
        self._place = waiting.get("place")
        self._gradients.restore(waiting.get("gradients", {}))
        # What the script has drawn since it was started, it had already drawn before the stop.
        seeds.restore(waiting.get("streams", {}))
        went_on.append((done, self._step))
        vars(builtins)["enumerate"] = enumerate_

    def _set_layers_again(self) -> None:
        """Restore the layers as of the stop, right after which the loop resumes."""
        self._trained.restore(self._trained_at_stop)
        self._trained_at_stop = {}

    def _look_at_script(self) -> None:
        """Find, as a loop begins, what holds the parts, and what else the script has created."""
        self._rebound.look()
        self._not_given.loop_begins()
        self._held_iterators.loop_begins()
        beside = self._not_given.new_modules()
        self._trained.add(beside)
        self._variables.add_objects(_with_attributes(beside))

    def _refuse_iterators(self) -> None:
        """End, before its first stop and with a sentence, a training that draws from an iterator of its own."""
        if self._resumed or self._step > 1:
            return
        if found := list(dict.fromkeys([*iterators(), *self._held_iterators.read_by_functions()])):
            source = f"the place of {', '.join(found)} is not found again: let state.batches(...) draw from its source"
            raise _refused(session.LeftAlone(source))
        if found := read_beside_ours():
            begins_anew = (
                f"after a stop {', '.join(found)} around its loop would begin anew with what is read beside the loop: "
                "let state.batches(...) draw both, or choose the other one by the number of the step"
            )
            raise _refused(session.LeftAlone(begins_anew))

    def _done(self) -> None:
        self._step += 1
        self._run.step(self._step, self._total or None)
        self._refuse_iterators()  # in the first step it may have created what it draws from
        due = self._saver.due()
        self._leave_if_asked(due and self._ranks.size > 1)
        if due and self._ranks.size == 1:
            self._run.announced.saved(lambda: self._saver.beside(self._step, self._files_now))

    def _leave_if_asked(self, due: bool = False) -> None:
        stopping, asked = self._run.asked(due)
        if stopping:
            self._run.leave_saved(self._save)
        elif asked:
            self._run.announced.saved(self._save)

    def _end(self) -> None:
        seeds.restore(self._waiting.get("streams", {}))
        self._run.end(self._step, self._save, self._checkpoints)

    def _description(self) -> dict[str, Any]:
        """Return what identifies this training: its parts as the script created them."""
        trained: list[Any] = []
        settings: dict[str, Any] = {}
        weights: list[Any] = []
        for name, part in self._parts.items():
            trained.append((name, type(part).__name__))
            if hasattr(part, "parameters"):
                trained.append(session.of_torch(part))
                settings[name] = repr(part)
                weights += session.first_weights(part.parameters())
            settings.update({f"{name} {key}": value for key, value in session.settings_of(part).items()})
        plain_parts = {name: part for name, part in self._parts.items() if isinstance(part, dict)}
        return claims.description("Elastic", trained, settings, plain_parts, claims.checksum(weights))

    def _save(self) -> None:
        own = self._ranks.gather(self._own())
        self._run.save_once(lambda: self._save_all(own))

    def _save_all(self, own: list[Any]) -> None:
        """Save the state with each rank's own; what is on a GPU that the job keeps may stay there."""
        state = self._state(own)
        held = gpu_state.hold(state, STATE) if self._ranks.size == 1 else None
        self._saver.now(self._step, _files(state, False), held)

    def _own(self) -> dict[str, Any]:
        """Return each rank's own state; until a loop has resumed, what was saved."""
        self._variables.share_with(self._rebound.now())
        return self._waiting or {
            "place": self._cursor.state(self._batch) if self._cursor else None,
            "streams": seeds.streams(devices=True),
            "variables": self._variables.state(),
            "gradients": self._gradients.state(),
            "begun": self._begun,
        }

    def _state(self, own: list[Any]) -> dict[str, Any]:
        parts = {**self._parts, **self._rebound.now()}
        values = {
            name: pytrees.keep(part) if isinstance(part, dict) else part.state_dict() for name, part in parts.items()
        }
        at = {
            "step": self._step,
            "epoch": self._epoch,
            "batch": self._batch,
            "iteration": self._iteration,
            "samples": self._samples,
        }
        self._trained.refuse_changed()
        self._not_given.refuse_changed()
        for of_rank in own:
            refuse_lost(of_rank.get("variables", ()), IN_A_DICTIONARY)
        self._held_iterators.refuse_read()
        return {"parts": values, "at": at, "own": own, "trained": self._trained_at_stop or self._trained.changed()}

    def _files_now(self, in_memory: bool) -> dict[str, Any]:
        return _files(self._state([self._own()]), in_memory)

    def _load(self, saved: Any) -> None:
        alone = self._ranks.size == 1
        state = self._ranks.share(_read(saved.path, alone) if self._ranks.rank == 0 else None)
        for name, part in self._parts.items():
            saved_part = state["parts"][name]
            if isinstance(part, dict):
                refill_in_place(part, pytrees.restored(saved_part, part))
                self._saved_parts[name] = copies(part)
            else:
                part.load_state_dict(saved_part)
                self._saved_parts[name] = _small(part, saved_part)
        self._trained_at_stop = state.get("trained", {})
        self._trained.restore(self._trained_at_stop, modes=False)  # before its loop the script may evaluate
        at = state["at"]
        self._step, self._epoch, self._batch = at["step"], at["epoch"], at["batch"]
        self._iteration = at.get("iteration")  # not in checkpoints of older versions, nor is the next
        self._samples = at.get("samples")
        own, rank = state["own"], self._ranks.rank
        self._waiting = dict(own[rank % len(own)])
        if rank >= len(own):  # an additional rank draws from its own streams
            self._waiting.pop("streams", None)
        if len(own) != self._ranks.size:
            self._waiting["gradients"] = mean([one.get("gradients", {}) for one in own])
        self._variables = Variables(self._apart, self._waiting.get("variables", ()), self._objects)

    def _restore_files(self) -> None:
        """Restore the script's files: what it has written since it was started, it had written before the stop."""
        saved, self._saved = self._saved, None
        replay.resumed(saved)


def _with_attributes(modules: Iterable[tuple[str, Any]]) -> list[Kept]:
    return [one for name, module in modules for one in own_attributes.of_modules(name, module)]


def _keeps_order(loader: Any) -> bool:
    """Return whether it gives the same items in the same order each time: a sequence, an array, a dictionary."""
    kind = type(loader)
    if isinstance(loader, (Sequence, dict, type({}.items()))) or hasattr(loader, "shape"):
        return True
    return hasattr(kind, "__getitem__") and not hasattr(kind, "__iter__")


def _small(part: Any, saved: Any) -> Any:
    """Return what a script may change of this part before it requests the first batch, as by stepping a scheduler."""
    if hasattr(part, "parameters"):
        return None
    if hasattr(part, "param_groups"):
        return [{key: value for key, value in one.items() if key != "params"} for one in saved["param_groups"]]
    return saved


def _set_again(part: Any, small: Any) -> None:
    if isinstance(part, dict):
        refill(part, small)
    elif hasattr(part, "param_groups"):
        for group, values in zip(part.param_groups, small):
            group.update(values)
    elif small is not None:
        part.load_state_dict(small)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _refused(why: session.LeftAlone) -> Exception | SystemExit:
    """Return the exception that ends this process with a sentence; in a thread of the script, an error.

    Python does not end the process with a thread; it then still exits with 1: it has not trained.
    """
    sentence = f"Elastic cannot make this training elastic, because {why}"
    if _is_main_thread():
        return SystemExit(sentence)
    sure_end.fail_at_exit()
    return RuntimeError(sentence)


def _files(state: dict[str, Any], in_memory: bool) -> dict[str, Any]:
    """Return the files of a checkpoint. `in_memory`: as bytes that later steps do not change."""
    torch = sys.modules.get("torch")
    if not torch:
        return {STATE: pickle.dumps(state)}
    if not in_memory:
        return {STATE: lambda path: torch.save(state, path)}
    file = io.BytesIO()
    torch.save(state, file)
    return {STATE: file.getbuffer()}


def _read(folder: Any, alone: bool) -> Any:
    if (folder / plain.TENSORS).exists():
        return gpu_state.read(folder, STATE, to_cpu=not alone)
    with (folder / STATE).open("rb") as file:
        of_torch = file.read(len(ZIP)) == ZIP
    if not of_torch:
        return pickle.loads((folder / STATE).read_bytes())
    import torch  # even if the script imports it only later

    return torch.load(folder / STATE, "cpu", weights_only=False)


def _whole(part: Any) -> Any:
    """Return what has the same state in each process. Raises LeftAlone if each has a part of it."""
    if type(part).__name__ == "DistributedDataParallel":
        return part.module
    if pytrees.is_of_nnx(part):
        return pytrees.OfNnx(part)
    tensors = part.parameters() if hasattr(part, "parameters") else ()
    if type(part).__name__ in SHARDED or any(hasattr(one, "placements") for one in tensors):
        raise session.LeftAlone(f"each process has a part of its state ({type(part).__name__})")
    return part
