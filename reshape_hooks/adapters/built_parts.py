"""Detects that a loop rebuilds its model, so that a new start could not load what was saved then.

    net[2] = torch.nn.Linear(8, 4)  # or pruning, weight_norm, LoRA, net.double(), within the loop

Promises: a model whose layers, or the names, shapes and dtypes of their saved tensors, differ from those when training
began is not saved, with a sentence. Exempt are lazy layers, which get their shapes in the first step, and layers that
load by their own rules. Called by `trained_parts`; Python 3.8 and newer, PyTorch only where the script uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from reshape_hooks import plain
from reshape_hooks.adapters.present_values import reference


class Layer(NamedTuple):
    """Describes what a new start must reproduce: a layer's class, and shape and dtype of its saved tensors, by name.

    `there`: returns the layer itself. `by_itself`: it loads by its own rules.
    """

    there: Callable[[], Any]
    kind: type
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    by_itself: bool


class BuiltParts:
    """Knows the layers of these modules as of its creation."""

    def __init__(self, modules: Mapping[str, Any]) -> None:
        self._modules = {name: module for name, module in modules.items() if not _loads_by_itself(module)}
        self._built = {name: _layers(module) for name, module in self._modules.items()}

    def loop_begins(self) -> None:
        """Take the present layers for those that the script builds at each start."""
        for name, module in self._modules.items():
            now = _layers(module)
            built = self._built[name]
            self._built[name] = {
                at: now.get(at, one)._replace(tensors=one.tensors, by_itself=one.by_itself) for at, one in built.items()
            }

    def refuse_changed(self) -> None:
        """Raise CheckpointError for a module with other layers, or whose layers save other tensors."""
        for name, module in self._modules.items():
            difference = _difference(self._built[name], _layers(module))
            if difference:
                raise plain.CheckpointError(
                    f"{name} is built otherwise than when training began ({difference}), which a new start would not "
                    "do and so could not load: build all layers before training begins"
                )


def _layers(module: Any) -> dict[str, Layer]:
    return {name: _layer(one) for name, one in module.named_modules()}


def _layer(one: Any) -> Layer:
    passing = getattr(one, "_non_persistent_buffers_set", ())
    saved = {name: tensor for name, tensor in {**one._parameters, **one._buffers}.items() if name not in passing}
    tensors = {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in saved.items() if _has_shape(tensor)}
    lazy = any(tensor is not None and not _has_shape(tensor) for tensor in saved.values())
    return Layer(reference(one), type(one), tensors, lazy or _loads_by_itself(one))


def _has_shape(tensor: Any) -> bool:
    return "Uninitialized" not in type(tensor).__name__ and hasattr(tensor, "shape")


def _loads_by_itself(module: Any) -> bool:
    """Return whether a module's class, or one of its hooks, determines what it loads."""
    torch: Any = sys.modules["torch"]
    if getattr(module, "_load_state_dict_pre_hooks", None):
        return True
    ways = [getattr(type(module), name, None) for name in ("load_state_dict", "_load_from_state_dict")]
    ours = torch.nn.Module.load_state_dict, torch.nn.Module._load_from_state_dict
    return any(
        way is not one and not getattr(way, "__module__", "").startswith("torch.nn.") for way, one in zip(ways, ours)
    )


def _difference(built: Mapping[str, Layer], now: Mapping[str, Layer]) -> str:
    """Name the layer that differs; empty if none does."""
    free = [name for name, one in built.items() if one.by_itself]
    for name in dict.fromkeys([*built, *now]):
        if any(name == one or not one or name.startswith(f"{one}.") for one in free):
            continue
        layer = repr(name) if name else "the whole"
        if name not in built:
            return f"its layer {layer} is new"
        if name not in now:
            return f"its layer {layer} is gone"
        before = built[name]
        after = now[name]
        if before.kind is not after.kind:
            return f"its layer {layer} was a {before.kind.__name__} and is a {after.kind.__name__}"
        if before.tensors != after.tensors:
            return f"its layer {layer} has other tensors{_other_types(before.tensors, after.tensors)}"
        if before.tensors and before.there() is not after.there():
            return f"its layer {layer} is another {after.kind.__name__}"
    return ""


def _other_types(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Name the dtypes of tensors with equal names and shapes before and after; empty where those differ, too."""
    if {name: shape for name, (shape, _) in before.items()} != {name: shape for name, (shape, _) in after.items()}:
        return ""
    had, has = next((of, after[name][1]) for name, (_, of) in before.items() if of != after[name][1])
    return f", of {has} in place of {had}"
