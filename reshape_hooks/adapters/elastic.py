"""Makes a training loop of one's own elastic in three lines: what belongs to its state, and what it loops over.

    state = reshape_hooks.Elastic(model=model, optimizer=optimizer)
    for epoch in state.epochs(10):
        for x, y in state.batches(loader):

Promises: the loop stops after a step, whose state is saved, and goes on with the next step, in the same order of
samples and with the same random numbers; each step is reported. Called by training scripts; the standard library only,
PyTorch where the script uses it, Python 3.8 and newer.
"""

from __future__ import annotations

import io
import itertools
import pickle
import sys
from collections.abc import Iterator
from typing import Any

from reshape_hooks import seeds
from reshape_hooks.adapters import session
from reshape_hooks.periodic.saver import Saver

STATE = "state.pkl"


class Elastic:
    """The state of a training: dictionaries, and objects that have `state_dict` and `load_state_dict`.

    It is saved when a stop or a checkpoint is asked for, now and then, after each epoch and at the end, and restored
    when this object is made: make it after its parts and before the first step. Raises TypeError for anything else,
    SystemExit where several processes train together, CheckpointError where all that was saved is damaged.
    """

    def __init__(self, **parts: Any) -> None:
        for name, part in parts.items():
            if not isinstance(part, dict) and not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                kind = type(part).__name__
                raise TypeError(f"{name} is a {kind}: Elastic keeps dictionaries, and objects that have a state_dict")
        try:
            session.refuse_other_masters()
        except session.LeftAlone as why:
            raise SystemExit(f"Elastic cannot make this training elastic, because {why}") from None
        seeds.begin()
        self._parts = parts
        self._run = session.of_process()
        checkpoints, saved = session.next_training()
        self._saver = Saver(checkpoints)
        self._step = self._total = self._epoch = self._epochs = self._batch = 0
        self._streams: Any = None
        self._cursor: Any = None
        self._place: Any = None
        if saved:
            self._load(saved)
        self._run.begin()
        self._saver.begin()

    def steps(self, total: int) -> Iterator[int]:
        """Yield the steps that are left, counted from 0; each is over when the next one is asked for."""
        self._total = total
        self._leave_if_asked()
        self._restore_streams()
        while self._step < total:
            yield self._step
            self._done()
        self._end()

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the epochs that are left, counted from 0, the first one of them for the rest of its batches."""
        self._epochs = total
        self._leave_if_asked()
        while self._epoch < total:
            yield self._epoch
            self._epoch += 1
            self._batch, self._cursor = 0, None
        self._end()

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of this epoch that are left: of a DataLoader, or of what comes in the same order again."""
        self._total = self._epochs * len(loader)
        self._restore_streams()
        self._run.stop.idle = False
        for batch in self._rest(loader):
            yield batch
            self._batch += 1
            self._done()
        # What follows, an evaluation perhaps, is done again after a stop, and so need not be waited for.
        self._run.stop.idle = self._run.saved(self._save)
        self._leave_if_asked()

    def _rest(self, loader: Any) -> Iterator[Any]:
        if not hasattr(loader, "batch_sampler"):
            return itertools.islice(loader, self._batch, None)
        from reshape_hooks.adapters import order

        order.refuse(loader)
        place, self._place = self._place, None
        self._cursor = order.Cursor(lambda one: one is loader, place if self._batch else None)
        with self._cursor:
            return iter(loader)

    def _done(self) -> None:
        self._step += 1
        self._run.step(self._step, self._total or None)
        self._leave_if_asked()
        if self._run.stop.take_save():
            self._run.saved(self._save)
        elif self._saver.due():
            self._run.saved(lambda: self._saver.beside(self._step, self._files))

    def _leave_if_asked(self) -> None:
        if self._run.stop.stopping:
            self._save()
            self._run.leave()

    def _end(self) -> None:
        self._restore_streams()
        self._run.end(self._step, self._save)

    def _save(self) -> None:
        self._saver.now(self._step, self._files(False))

    def _files(self, in_memory: bool) -> dict[str, Any]:
        values = {name: part if isinstance(part, dict) else part.state_dict() for name, part in self._parts.items()}
        place = self._cursor.state(self._batch) if self._cursor else None
        at = {"step": self._step, "epoch": self._epoch, "batch": self._batch, "place": place}
        state = {"parts": values, "at": at, "streams": seeds.streams(devices=True)}
        torch = sys.modules.get("torch")
        if not torch:
            return {STATE: pickle.dumps(state)}
        if not in_memory:
            return {STATE: lambda path: torch.save(state, path)}
        file = io.BytesIO()
        torch.save(state, file)
        return {STATE: file.getbuffer()}

    def _load(self, saved: Any) -> None:
        torch = sys.modules.get("torch")
        path = saved.path / STATE
        state = torch.load(path, "cpu", weights_only=False) if torch else pickle.loads(path.read_bytes())
        for name, part in self._parts.items():
            if isinstance(part, dict):
                part.clear()
                part.update(state["parts"][name])
            else:
                part.load_state_dict(state["parts"][name])
        at = state["at"]
        self._step, self._epoch, self._batch, self._place = at["step"], at["epoch"], at["batch"], at["place"]
        self._streams = state["streams"]

    def _restore_streams(self) -> None:
        """What the script has drawn since it was started, it had drawn before the stop, too."""
        if self._streams:
            seeds.restore(self._streams)
            self._streams = None
