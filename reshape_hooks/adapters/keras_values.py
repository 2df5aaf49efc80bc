"""Reads and sets the values of Keras and TensorFlow objects: variables and tensors.

A script may hold some beside the model that it trains: a loss weight lowered by a callback, a second model. Never
imports Keras or TensorFlow: if the script has not, there are none. Called by `variables` and `keras_fit`; standard
library, Python 3.8 and newer.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from typing import Any

LIBRARIES = ("keras", "tensorflow")
MOST_READ_BYTES = 256 << 20  # of a variable that is compared


def is_of_keras(kind: type) -> bool:
    """Return whether a class is from Keras or TensorFlow, or derived from one of theirs."""
    if not any(name in sys.modules for name in LIBRARIES):
        return False
    return any(str(base.__module__).partition(".")[0] in LIBRARIES for base in kind.__mro__)


def is_tensor(value: Any) -> bool:
    """Return whether this is a numeric TensorFlow tensor, which never changes."""
    tf: Any = sys.modules.get("tensorflow")
    kind = getattr(tf, "Tensor", None)
    if kind is None or not isinstance(value, kind) or not hasattr(value, "numpy"):
        return False
    of = value.dtype
    return bool(of.is_floating or of.is_integer or of.is_bool or of.is_complex)


def tensor_of(values: Any) -> Any:
    """Return a TensorFlow tensor with these values."""
    return sys.modules["tensorflow"].constant(values)


def variables_of(value: Any) -> list[Any]:
    """Return the variables of a variable, a generator, a layer, an optimizer or a metric, in order."""
    keras: Any = sys.modules.get("keras")
    tf: Any = sys.modules.get("tensorflow")
    if keras is None or tf is None:
        return []
    if isinstance(value, (keras.Variable, tf.Variable)):
        return [value]
    if isinstance(value, (keras.random.SeedGenerator, tf.random.Generator)):
        return [value.state]
    if isinstance(value, (keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)):
        return list(value.variables)
    return []


def values_of(variables: Sequence[Any]) -> list[Any]:
    """Return their values as NumPy arrays."""
    return [one.numpy() for one in variables]


def size_of(variables: Sequence[Any]) -> int:
    """Return their total size in bytes."""
    return sum(one.numpy().nbytes for one in variables)


def digests_of(value: Any) -> list[Any]:
    """Return digests that change with the values of an object's variables; for a very large one, its shape."""
    found = []
    for one in values_of(variables_of(value)):
        known = one.nbytes <= MOST_READ_BYTES and not one.dtype.hasobject
        found.append(zlib.crc32(one.tobytes()) if known else one.shape)
    return found


def assign(value: Any, places: Sequence[int], values: Sequence[Any]) -> bool:
    """Assign the values to the variables at these places. Return False, changing nothing, if shapes differ."""
    there = variables_of(value)
    held = [there[place] for place in places if place < len(there)]
    if [tuple(one.shape) for one in held] != [one.shape for one in values]:
        return False
    for one, new in zip(held, values):
        one.assign(new)
    return True
