"""Reads and sets what objects of Keras and TensorFlow hold: values of variables, of tensors.

A script may hold some beside the model that it trains: a weight of a loss that a callback lowers, a second model. Never
imports Keras or TensorFlow: where the script has not, nothing is theirs. Called by `variables` and `keras_fit`; the
standard library, Python 3.8 and newer.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from typing import Any

LIBRARIES = ("keras", "tensorflow")
MOST_READ_BYTES = 256 << 20  # of a variable that is compared


def is_of_keras(kind: type) -> bool:
    """True of a class of Keras or TensorFlow, and of one that a script has derived from it."""
    if not any(name in sys.modules for name in LIBRARIES):
        return False
    return any(str(base.__module__).partition(".")[0] in LIBRARIES for base in kind.__mro__)


def is_tensor(value: Any) -> bool:
    """True of a tensor of TensorFlow that holds numbers, which never change."""
    tf: Any = sys.modules.get("tensorflow")
    kind = getattr(tf, "Tensor", None)
    if kind is None or not isinstance(value, kind) or not hasattr(value, "numpy"):
        return False
    of = value.dtype
    return bool(of.is_floating or of.is_integer or of.is_bool or of.is_complex)


def tensor_of(values: Any) -> Any:
    """Return a tensor of TensorFlow with these values."""
    return sys.modules["tensorflow"].constant(values)


def variables_of(value: Any) -> list[Any]:
    """Return the variables of a variable, a generator, a layer, an optimizer or a metric, in their order."""
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
    """Return their values, as arrays of NumPy."""
    return [one.numpy() for one in variables]


def size_of(variables: Sequence[Any]) -> int:
    """Return the bytes of all of them together."""
    return sum(one.numpy().nbytes for one in variables)


def digests_of(value: Any) -> list[Any]:
    """Return what is another one once a variable in this object has another value; of a very large one its shape."""
    found = []
    for one in values_of(variables_of(value)):
        known = one.nbytes <= MOST_READ_BYTES and not one.dtype.hasobject
        found.append(zlib.crc32(one.tobytes()) if known else one.shape)
    return found


def assign(value: Any, places: Sequence[int], values: Sequence[Any]) -> bool:
    """Give the variables at these places of an object the values. False, and nothing is changed, if it has others."""
    there = variables_of(value)
    held = [there[place] for place in places if place < len(there)]
    if [tuple(one.shape) for one in held] != [one.shape for one in values]:
        return False
    for one, new in zip(held, values):
        one.assign(new)
    return True
