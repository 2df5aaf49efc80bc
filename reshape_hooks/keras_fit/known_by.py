"""Describes what identifies a call of `fit` after a restart: the call, model, optimizer and data (`claims`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshape_hooks import claims
from reshape_hooks.keras_fit import pipelines, variables

ARGUMENTS = ("batch_size", "validation_split", "steps_per_epoch", "class_weight")


def description(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description for the arguments of a `fit`."""
    model = given["self"]
    trained = [type(model).__name__, [tuple(v.shape) for v in model.variables], type(model.optimizer).__name__]
    settings = {
        "layers": [_config(layer) for layer in model._flatten_layers(include_self=False)],
        "optimizer": _config(model.optimizer),
        "loss": _named(model.loss),
    }
    arguments = {name: given[name] for name in ARGUMENTS}
    arguments["data"] = pipelines.content([given["x"], given["y"], given["sample_weight"]])
    weights = claims.checksum(v for v in model.trainable_variables[:2])
    return claims.description("fit", trained, settings, arguments, weights)


def _config(part: Any) -> Any:
    """Return class and settings of a layer or an optimizer, without its name."""
    try:
        found = part.get_config()
    except Exception:  # a class of the script's own may have none
        found = {}
    found = {
        name: value for name, value in found.items() if name not in ("name", "layers", "input_layers", "output_layers")
    }
    return type(part).__name__, variables.COUNTED.sub("", repr(found))


def _named(loss: Any) -> str:
    name = getattr(loss, "__qualname__", None)
    return str(name or (loss if isinstance(loss, str) else _config(loss)))
