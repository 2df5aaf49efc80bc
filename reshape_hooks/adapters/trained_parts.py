"""Keeps what a loop changes in its parts and no `state_dict` holds: which parameters are trained.

    if epoch == 5:
        for parameter in backbone.parameters():
            parameter.requires_grad = True

Promises: a parameter that was trained at a stop is trained after it, one that was frozen is frozen. An optimizer that
got parameter groups since training began is not saved, with a sentence: a new start could not load it. Called by
`elastic` and the adapters; imports nothing of a library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reshape_hooks import plain

if TYPE_CHECKING:
    Flags = Sequence[bool]  # of each parameter of a module: whether it is trained


class TrainedParts:
    """Knows which parameters these modules train, and how many parameter groups these optimizers have."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._modules = {name: part for name, part in parts.items() if hasattr(part, "named_modules")}
        self._optimizers = {name: part for name, part in parts.items() if hasattr(part, "param_groups")}
        self._given = self.now()
        self._groups = {name: len(part.param_groups) for name, part in self._optimizers.items()}

    def now(self) -> dict[str, Flags]:
        return {name: [one.requires_grad for one in part.parameters()] for name, part in self._modules.items()}

    def changed(self) -> dict[str, Flags]:
        """Return what is trained in those modules where it is not what it was when they were given."""
        return {name: flags for name, flags in self.now().items() if flags != self._given[name]}

    def refuse_later_groups(self) -> None:
        """Raise CheckpointError for an optimizer that has other parameter groups than it was given with."""
        for name, part in self._optimizers.items():
            if len(part.param_groups) != self._groups[name]:
                raise plain.CheckpointError(
                    f"{name} got parameter groups after training began, which a new start would not find: add them "
                    "before, with a learning rate of 0 or parameters that do not require gradients"
                )

    def set(self, saved: Mapping[str, Flags]) -> None:
        """Train the parameters of these modules that are to be trained, and freeze the others."""
        for name, flags in saved.items():
            for parameter, trained in zip(self._modules[name].parameters(), flags):
                if parameter.requires_grad != trained:
                    parameter.requires_grad = trained
