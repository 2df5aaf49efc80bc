"""Keeps what a loop or a callback changes in its parts and no `state_dict` holds: what is trained, numbers of layers.

    if epoch == 5:
        for parameter in backbone.parameters():
            parameter.requires_grad = True
        dropout.p = 0.3

Promises: a parameter that was trained at a stop is trained after it, one that was frozen is frozen; numbers and words
that a layer of a library has been given stay. An optimizer that got parameter groups since training began is not saved,
with a sentence: a new start could not load it. Called by `elastic` and the adapters; imports nothing of a library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reshape_hooks import plain
from reshape_hooks.adapters.script_frames import is_own

NUMBERS = (int, float)
NUMBERS_AND_WORDS = (*NUMBERS, str)
OF_RUN = ("torch.nn.parallel", "torch.distributed", "torch.jit", "torch._dynamo")  # what stands around a model


class Changed(NamedTuple):
    """Holds which parameters of a module are trained, in order, and what was set in its layers, by their names."""

    trained: Sequence[bool]
    layers: Mapping[str, Mapping[str, Any]]


class TrainedParts:
    """Knows which parameters these modules train, and how many parameter groups these optimizers have."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._modules = {name: part for name, part in parts.items() if hasattr(part, "named_modules")}
        self._optimizers = {name: part for name, part in parts.items() if hasattr(part, "param_groups")}
        self._given = self.state()
        self._groups = {name: len(part.param_groups) for name, part in self._optimizers.items()}

    def state(self) -> dict[str, Changed]:
        """Return all that may change of each module."""
        return {name: _of_module(part) for name, part in self._modules.items()}

    def changed(self) -> dict[str, Changed]:
        """Return of those modules what is not what it was when they were given."""
        found = {}
        for name, now in self.state().items():
            given = self._given[name]
            layers = {layer: differing(values, given.layers.get(layer, {})) for layer, values in now.layers.items()}
            trained = now.trained if now.trained != given.trained else ()
            change = Changed(trained, {layer: values for layer, values in layers.items() if values})
            if any(change):
                found[name] = change
        return found

    def refuse_later_groups(self) -> None:
        """Raise CheckpointError for an optimizer that has other parameter groups than it was given with."""
        for name, part in self._optimizers.items():
            if len(part.param_groups) != self._groups[name]:
                raise plain.CheckpointError(
                    f"{name} got parameter groups after training began, which a new start would not find: add them "
                    "before, with a learning rate of 0 or parameters that do not require gradients"
                )

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Set again what `state` or `changed` returned."""
        for name, one in saved.items():
            module = self._modules[name]
            change = Changed(*one) if isinstance(one, tuple) else Changed(one, {})  # flags in older checkpoints
            for parameter, trained in zip(module.parameters(), change.trained):
                if parameter.requires_grad != trained:
                    parameter.requires_grad = trained
            for layer_name, layer in module.named_modules():
                layer.__dict__.update(change.layers.get(layer_name, {}))


def _of_module(module: Any) -> Changed:
    layers = {}
    for name, layer in module.named_modules():
        if not is_own(type(layer)) and not type(layer).__module__.startswith(OF_RUN):
            layers[name] = settings(vars(layer), NUMBERS_AND_WORDS)
            layers[name].pop("training", None)  # set by whoever trains or evaluates
    return Changed([one.requires_grad for one in module.parameters()], layers)


def settings(attributes: Mapping[str, Any], kinds: tuple[type, ...] = NUMBERS) -> dict[str, Any]:
    """Return the public attributes of these kinds, and those that are None: they may become one."""
    public = {name: value for name, value in attributes.items() if name[0] != "_"}
    return {name: value for name, value in public.items() if value is None or isinstance(value, kinds)}


def differing(now: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not as it was given."""
    return {name: value for name, value in now.items() if name not in given or given[name] != value}
