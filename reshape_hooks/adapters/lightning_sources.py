"""Recreates Lightning's loaders after a stop from what was there when they were first created.

    class Data(LightningDataModule):
        def train_dataloader(self):
            kept = self.rng.sample(range(len(self.rows)), 64)  # another draw each time

Lightning asks a module or a DataModule for its loaders when `fit` begins and, with `reload_dataloaders_every_n_epochs`,
in later epochs; after a stop it asks in another order, and once. Promises: what the script's objects counted and drew
from, and the random numbers, are then as they were when the loaders of the interrupted epoch were created. Called by
`lightning_trainer`; imports nothing from a library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from reshape_hooks import seeds

if TYPE_CHECKING:
    from reshape_hooks.adapters.variables import Saved, Variables

TRAIN = "train_dataloader"
LAST_OF_VALIDATION = "_last_val_dl_reload_epoch"  # set by a validation before it asks, by training after it has asked


class Sources:
    """Knows where one call of `fit` gets its loaders from. `saved`: what `made` was at the stop."""

    def __init__(self, trainer: Any, saved: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._loops = trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop
        self._waiting = dict(saved)
        self._resumed = False
        self._variables: Variables | None = None
        self._first: Saved = ()
        self.made: dict[str, Any] = {}  # what was there when each source's loaders were last created; the epoch

    def watch_requests(self) -> None:
        """Observe the creation of loaders until `stop_watching` is called."""
        for loop in self._loops:
            loop._data_source.dataloader = functools.partial(self._make_loader, loop, loop._data_source.dataloader)

    def stop_watching(self) -> None:
        """Stop observing."""
        for loop in self._loops:
            vars(loop._data_source).pop("dataloader", None)

    def keep_by(self, variables: Variables) -> None:
        """Keep the script's variables, which are set up before any loader is created."""
        self._variables = variables
        self._first = variables.changed()  # the script's initial values of what had changed at the stop

    def epoch_goes_on(self) -> None:
        """Resume the interrupted epoch: count epochs from the creation of its loader, not from the restart."""
        self._resumed = True
        if TRAIN in self.made:
            self._trainer.fit_loop._last_train_dl_reload_epoch = self.made[TRAIN]["epoch"]

    def _make_loader(self, loop: Any, theirs: Callable[[], Any]) -> Any:
        source = loop._data_source
        variables = self._variables
        if variables is None or not source.is_module():
            return theirs()
        now = self._state_now(loop, variables)
        stood = self._waiting.pop(source.name, None)
        if stood is None or (self._resumed and self._is_due(stood)):
            self.made[source.name] = now
            return theirs()
        self.made[source.name] = stood
        if hasattr(loop, LAST_OF_VALIDATION):
            setattr(loop, LAST_OF_VALIDATION, stood["epoch"])
        variables.set_to(self._first)  # what had not changed yet
        _restore_state(variables, stood)
        try:
            return theirs()
        finally:
            _restore_state(variables, now)

    def _is_due(self, stood: Mapping[str, Any]) -> bool:
        """Return whether the Trainer would recreate this loader even without a stop."""
        every = self._trainer.reload_dataloaders_every_n_epochs
        return bool(every and self._trainer.current_epoch - stood["epoch"] >= every)

    def _state_now(self, loop: Any, variables: Variables) -> dict[str, Any]:
        """Return the present state, and the epoch from which the Trainer counts until it recreates this loader."""
        epoch = getattr(loop, LAST_OF_VALIDATION, self._trainer.current_epoch)
        return {"epoch": epoch, "variables": variables.changed(), "streams": seeds.streams(devices=True)}


def _restore_state(variables: Variables, stood: Mapping[str, Any]) -> None:
    variables.set_to(stood["variables"])
    seeds.restore(stood["streams"])
