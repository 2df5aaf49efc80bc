"""Keeps what a loop or a callback changes in its parts outside any `state_dict`: what is trained, layer settings.

    if epoch == 5:
        for parameter in backbone.parameters():
            parameter.requires_grad = True
        dropout.p = 0.3

Promises: a parameter that was trained at a stop is trained after it, a frozen one is frozen; numbers and strings set in
a library's layer stay; a layer in `eval()` mode stays in it. An optimizer that gained parameter groups since training
began is not saved, with a sentence, as a new start could not load it; nor is a model with other layers (`built_parts`).
Called by `elastic` and the adapters; imports nothing from a library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from reshape_hooks import plain
from reshape_hooks.adapters.built_parts import BuiltParts
from reshape_hooks.adapters.present_values import reference
from reshape_hooks.adapters.script_frames import is_own

NUMBERS = (int, float)
NUMBERS_AND_WORDS = (*NUMBERS, str)
OF_RUN = ("torch.nn.parallel", "torch.distributed", "torch.jit", "torch._dynamo")  # wrappers around a model


class Changed(NamedTuple):
    """Which of a module's parameters are trained, in order, and what was set in its layers, by name.

    `modes`: which of these layers are in training mode; not in checkpoints of older versions.
    """

    trained: Sequence[bool]
    layers: Mapping[str, Mapping[str, Any]]
    modes: Sequence[tuple[str, bool]] = ()


class TrainedParts:
    """Knows which parameters these modules train, and how many parameter groups these optimizers have."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._modules = {name: part for name, part in parts.items() if hasattr(part, "named_modules")}
        self._optimizers = {name: part for name, part in parts.items() if hasattr(part, "param_groups")}
        self._built = BuiltParts(self._modules)
        self._beside: dict[str, Callable[[], Any]] = {}
        self._given = [self.state()]  # as given, then as the script has set them for its loop
        self._groups = {name: len(part.param_groups) for name, part in self._optimizers.items()}

    def add(self, beside: Iterable[tuple[str, Any]]) -> None:
        """Keep the training mode of the layers of these modules, which were not given."""
        self._beside.update({f"beside {name}": reference(module) for name, module in beside})

    def _modules_beside(self) -> dict[str, Any]:
        there = {name: module() for name, module in self._beside.items()}
        return {name: module for name, module in there.items() if module is not None}

    def state(self) -> dict[str, Changed]:
        """Return everything that may change in each module."""
        beside = {name: Changed((), {}, _modes(module)) for name, module in self._modules_beside().items()}
        return {**{name: _of_module(part) for name, part in self._modules.items()}, **beside}

    def changed(self) -> dict[str, Changed]:
        """Return what differs from what a new start makes, and the layers' training modes."""
        found = {}
        for name, now in self.state().items():
            all_given = [one.get(name, now) for one in self._given]
            layers: dict[str, dict[str, Any]] = {}
            for layer, values in now.layers.items():
                for given in all_given:
                    layers.setdefault(layer, {}).update(differing(values, given.layers.get(layer, {})))
            trained = now.trained if any(now.trained != given.trained for given in all_given) else ()
            change = Changed(trained, {layer: values for layer, values in layers.items() if values}, now.modes)
            if any(change):
                found[name] = change
        return found

    def loop_begins(self) -> None:
        """Take the present layers, as the first loop begins, for those that the script builds at each start."""
        self._built.loop_begins()
        self._given.append(self.state())

    def refuse_changed(self) -> None:
        """Raise CheckpointError for an optimizer with other parameter groups, or a module with other layers."""
        self._built.refuse_changed()
        for name, part in self._optimizers.items():
            if len(part.param_groups) != self._groups[name]:
                raise plain.CheckpointError(
                    f"{name} got parameter groups after training began, which a new start would not find: add them "
                    "before, with a learning rate of 0 or parameters that do not require gradients"
                )

    def restore(self, saved: Mapping[str, Any], modes: bool = True) -> None:
        """Restore what `state` or `changed` returned. `modes`: also the training modes."""
        present = {**self._modules, **self._modules_beside()}
        for name, one in saved.items():
            module = present.get(name)
            if module is None:  # the script has not created it yet
                continue
            change = Changed(*one) if isinstance(one, tuple) else Changed(one, {})  # flags in older checkpoints
            for parameter, trained in zip(module.parameters(), change.trained):
                if parameter.requires_grad != trained:
                    parameter.requires_grad = trained
            trains = dict(change.modes) if modes else {}
            for layer_name, layer in module.named_modules():
                layer.__dict__.update(change.layers.get(layer_name, {}))
                layer.training = trains.get(layer_name, layer.training)


def _of_module(module: Any) -> Changed:
    layers = {}
    for name, layer in module.named_modules():
        if not is_own(type(layer)) and not type(layer).__module__.startswith(OF_RUN):
            layers[name] = settings(vars(layer), NUMBERS_AND_WORDS)
            layers[name].pop("training", None)
    return Changed([one.requires_grad for one in module.parameters()], layers, _modes(module))


def _modes(module: Any) -> tuple[tuple[str, bool], ...]:
    return tuple((name, layer.training) for name, layer in module.named_modules())


def settings(attributes: Mapping[str, Any], kinds: tuple[type, ...] = NUMBERS) -> dict[str, Any]:
    """Return the public attributes of these types, and those that are None, which may become one."""
    public = {name: value for name, value in attributes.items() if name[0] != "_"}
    return {name: value for name, value in public.items() if value is None or isinstance(value, kinds)}


def differing(now: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from what was given."""
    return {name: value for name, value in now.items() if name not in given or given[name] != value}
