"""Calls the callbacks of a `fit`, and tells the fit when a batch is done; keeps the callbacks' state.

Promises: the user's callbacks see each epoch begin and each batch end once over all generations, `on_train_begin` once
in each. Called by `call`, and by Keras.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras.callbacks import BackupAndRestore, Callback, CallbackList, CSVLogger, ProgbarLogger

from reshape_hooks import plain
from reshape_hooks.keras_fit import attributes
from reshape_hooks.plain import CheckpointError

OF_TESTS = ("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end")


class FitCallbacks(CallbackList):  # type: ignore[misc]  # Keras is untyped
    """The callbacks of one `fit`. `call`: that fit."""

    def __init__(self, call: Any, callbacks: Any, **given: Any) -> None:
        self.call, self.resuming = call, False
        super().__init__(callbacks, add_history=True, add_progbar=given["verbose"] != 0, **given)
        self.kept = [one for one in self.callbacks if not isinstance(one, ProgbarLogger)]
        self.marks = [attributes.mark(one) for one in self.kept]
        self.attributes = [attributes.Attributes(f"callback {number}", one) for number, one in enumerate(self.kept)]

    def state(self, known: frozenset[int], of_script: Mapping[Any, Any]) -> list[Any]:
        """Return what `restore` needs: name, attributes, the size of a CSVLogger's file, variables.

        `known`: ids of the variables that are saved with the model. `of_script`: what is kept as the script's
        variables.
        """
        return [
            (
                type(one).__qualname__,
                attributes.read(one, marks, of_script.get(others.key, ()))[0],
                _size(one),
                attributes.read_variables(one, known),
            )
            for one, marks, others in zip(self.kept, self.marks, self.attributes)
        ]

    def hear_of_validation(self) -> bool:
        """Return whether a callback may count what a validation does, which is repeated after a stop in it."""
        return any(getattr(type(one), name) is not getattr(Callback, name) for one in self.kept for name in OF_TESTS)

    def check(self, state: list[Any]) -> None:
        """Raise CheckpointError if the state is that of other callbacks."""
        was, now = [name for name, *_ in state], [type(one).__qualname__ for one in self.kept]
        if was != now:
            raise CheckpointError(f"the checkpoint has the callbacks {was}, this fit has {now}; run the same script")

    def restore(self, state: list[Any]) -> None:
        """Restore the attributes of all callbacks, except the open file of a CSVLogger."""
        for one, (name, found, _, *held) in zip(self.kept, state):
            for other in attributes.write_variables(one, held[0]) if held else ():  # not in checkpoints of old versions
                plain.warn(
                    f"reshape: {other} of the callback {name} begins anew: it held other variables when it was saved"
                )
            attributes.write(one, {n: v for n, v in found.items() if not isinstance(one, CSVLogger) or n == "keys"})

    @property
    def shown(self) -> int | None:
        """Return the number of batches to which the bar counts."""
        return self._progbar.target if self._progbar is not None else None

    def flush(self) -> None:
        """Wait for callbacks that run asynchronously."""
        if self._async_train:
            self._flush_futures()

    def on_train_begin(self, logs: Any = None) -> None:
        at = self.call.position
        self.set_params({**self.params, "steps": self.call.batches.num_batches or (at and at["shown"])})
        if self.call.ended:
            self.call.replay()
            return
        self.resuming = at is not None
        loggers = [(one, one.append) for one in self.kept if isinstance(one, CSVLogger)]
        if at is not None:
            for one, (_, _, size, *_) in zip(self.kept, at["callbacks"]):
                if isinstance(one, CSVLogger) and _size(one):
                    os.truncate(one.filename, min(size, _size(one)))  # rows of epochs that are repeated
                    one.append = True
        super().on_train_begin(logs)
        for one, append in loggers:
            one.append = append
        if at is not None and any(isinstance(one, BackupAndRestore) for one in self.kept):
            self.model._initial_epoch = None  # it is at its own, older place
        self.call.begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.call.epoch_begins(epoch)
        if not self.resuming:
            super().on_epoch_begin(epoch, logs)
            return
        self.resuming = False
        for one in self.callbacks:
            if isinstance(one, ProgbarLogger):
                one.on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch, logs)
        self.call.batch_done(batch, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        self.call.validation_begins()
        super().on_test_begin(logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_test_batch_end(batch, logs)
        self.call.stop_in_validation()

    def on_test_end(self, logs: Any = None) -> None:
        super().on_test_end(logs)
        self.call.validation_ended()

    def on_train_end(self, logs: Any = None) -> None:
        if not self.call.ended:
            super().on_train_end(logs)


def _size(callback: Any) -> int:
    """Return the size of a CSVLogger's file; 0 without one."""
    path = Path(callback.filename) if isinstance(callback, CSVLogger) else None
    return path.stat().st_size if path is not None and path.exists() else 0
