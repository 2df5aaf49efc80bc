"""Saves the plain attributes of a callback or of a user's dataset, and sets them again in another process.

Of models, metrics, optimizers and random generators of Keras in them the variables are saved (`read_variables`). What
else cannot be pickled (functions, open files) stays as the script has made it. Large arrays are saved only when
they have changed since `mark`.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Container, Mapping
from types import FunctionType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from reshape_hooks.adapters import keras_values
from reshape_hooks.adapters.script_frames import Object, is_own

LARGE = 1 << 20  # bytes
BLOCKS = 256  # of a large array that are compared, evenly spread
KERAS_OWN = ("model", "_model", "params")
LIVING = (keras.layers.Layer, keras.Variable, keras.optimizers.Optimizer, tf.Variable, tf.data.Dataset)


def checksum(array: Any) -> int:
    """Return a number for the content of an array; of a large one for blocks that are spread over it."""
    array = np.asarray(array)
    head = zlib.crc32(f"{array.dtype} {array.shape}".encode())
    if array.dtype.hasobject:
        return head
    if array.nbytes <= LARGE or array.ndim == 0:
        return zlib.crc32(np.ascontiguousarray(array).tobytes(), head)
    rows = max(1, LARGE * len(array) // array.nbytes // BLOCKS)
    for begin in np.linspace(0, len(array) - rows, min(BLOCKS, len(array)), dtype=np.int64):
        head = zlib.crc32(np.ascontiguousarray(array[begin : begin + rows]).tobytes(), head)
    return head


def mark(owner: Any) -> dict[str, int]:
    """Return the checksums of its large arrays as they are now."""
    return {name: checksum(value) for name, value in vars(owner).items() if _large(value)}


class Attributes(Object):
    """The attributes of a callback that are kept as variables of the script, which may hold the same objects.

    Of a callback of Keras itself these are the functions that it was given; `read` keeps what it counts.
    """

    @property
    def variables(self) -> Mapping[str, Any]:
        """Return them, as they are now."""
        own = is_own(type(self._owner))
        found = {name: value for name, value in vars(self._owner).items() if name not in KERAS_OWN}
        return {
            name: value
            for name, value in found.items()
            if (own and not (_large(value) or _variables(value))) or type(value) is FunctionType
        }


def read(owner: Any, marks: Mapping[str, int], kept: Container[str] = ()) -> tuple[dict[str, bytes], list[str]]:
    """Return its attributes, pickled, without large arrays that are as marked; and the names of all others.

    `kept`: names of attributes that are kept in another way.
    """
    found, others = {}, []
    for name, value in list(vars(owner).items()):
        if name in KERAS_OWN or name in kept or (_large(value) and marks.get(name) == checksum(value)):
            continue
        try:
            found[name] = _pickled(value)
        except Exception:  # anything may refuse, and says so in its own way
            others.append(name)
    return found, others


def write(owner: Any, state: Mapping[str, bytes]) -> None:
    """Set what `read` returned. An array of the same shape is changed in place: others may hold it, too."""
    for name, data in state.items():
        value, live = pickle.loads(data), vars(owner).get(name)
        alike = isinstance(live, np.ndarray) and isinstance(value, np.ndarray) and live.flags.writeable
        if alike and (live.shape, live.dtype) == (value.shape, value.dtype):
            live[...] = value
        else:
            vars(owner)[name] = value


def read_variables(owner: Any, known: frozenset[int]) -> dict[str, list[Any]]:
    """Return the values of what its attributes hold of Keras. `known`: ids of variables that are saved elsewhere."""
    found = {name: _variables(value) for name, value in vars(owner).items() if name not in KERAS_OWN}
    return {
        name: [v.numpy() for v in held] for name, held in found.items() if held and not known.issuperset(map(id, held))
    }


def write_variables(owner: Any, state: Mapping[str, list[Any]]) -> list[str]:
    """Set what `read_variables` returned. Return the names of those that hold something else now."""
    others = []
    for name, values in state.items():
        held = _variables(vars(owner).get(name))
        if [tuple(v.shape) for v in held] == [value.shape for value in values]:
            for v, value in zip(held, values):
                v.assign(value)
        else:
            others.append(name)
    return others


def _variables(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [v for one in value for v in _variables(one)]
    return keras_values.variables_of(value)


class _PlainPickler(pickle.Pickler):
    def persistent_id(self, thing: Any) -> None:
        if isinstance(thing, LIVING):
            raise pickle.PicklingError("a part of the model")


def _pickled(value: Any) -> bytes:
    file = io.BytesIO()
    _PlainPickler(file, protocol=4).dump(value)
    return file.getvalue()


def _large(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.nbytes >= LARGE
