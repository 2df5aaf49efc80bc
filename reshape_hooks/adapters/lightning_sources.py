"""Makes the loaders of Lightning again, after a stop, from what stood when they were made.

    class Data(LightningDataModule):
        def train_dataloader(self):
            kept = self.rng.sample(range(len(self.rows)), 64)  # another draw each time

Lightning asks a module or a DataModule for its loaders when `fit` begins and, with `reload_dataloaders_every_n_epochs`,
in later epochs; after a stop it asks in another order, and once. Promises: what the script's objects counted and drew
by, and the random numbers, are then as they were when the loaders of the broken epoch were made. Called by
`lightning_trainer`; imports nothing of a library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from reshape_hooks import seeds

if TYPE_CHECKING:
    from reshape_hooks.adapters.variables import Saved, Variables

TRAIN = "train_dataloader"
LAST_OF_VALIDATION = "_last_val_dl_reload_epoch"  # which a validation sets before it asks, training after it has asked


class Sources:
    """Knows where one call of `fit` gets its loaders from. `saved`: what `made` was at the stop."""

    def __init__(self, trainer: Any, saved: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._loops = trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop
        self._waiting = dict(saved)
        self._resumed = False
        self._variables: Variables | None = None
        self._first: Saved = ()
        self.made: dict[str, Any] = {}  # what stood when the loaders of each source were last made, and in which epoch

    def watch_requests(self) -> None:
        """See when loaders are made, until `stop_watching` is called."""
        for loop in self._loops:
            loop._data_source.dataloader = functools.partial(self._make_loader, loop, loop._data_source.dataloader)

    def stop_watching(self) -> None:
        """See it no longer."""
        for loop in self._loops:
            vars(loop._data_source).pop("dataloader", None)

    def keep_by(self, variables: Variables) -> None:
        """The script's objects are set up, and no loader is made yet."""
        self._variables = variables
        self._first = variables.changed()  # of what had changed at the stop, as the script makes it

    def epoch_goes_on(self) -> None:
        """The broken epoch goes on: count epochs from that in which its loader was made, and not from the restart."""
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
        """True where the Trainer would make this loader anew without a stop, too."""
        every = self._trainer.reload_dataloaders_every_n_epochs
        return bool(every and self._trainer.current_epoch - stood["epoch"] >= every)

    def _state_now(self, loop: Any, variables: Variables) -> dict[str, Any]:
        """Return what stands now, and from which epoch on the Trainer counts until it makes this loader anew."""
        epoch = getattr(loop, LAST_OF_VALIDATION, self._trainer.current_epoch)
        return {"epoch": epoch, "variables": variables.changed(), "streams": seeds.streams(devices=True)}


def _restore_state(variables: Variables, stood: Mapping[str, Any]) -> None:
    variables.set_to(stood["variables"])
    seeds.restore(stood["streams"])
