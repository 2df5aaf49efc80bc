"""Saves the plain attributes of a callback or a user's dataset, and restores them in another process.

For Keras models, metrics, optimizers and random generators among them, the variables are saved (`read_variables`).
Anything else that cannot be pickled (functions, open files) stays as the script created it. Large arrays are saved only
if they have changed since `mark`.
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
BLOCKS = 256  # blocks of a large array that are compared, evenly spaced
KERAS_OWN = ("model", "_model", "params")
LIVING = (keras.layers.Layer, keras.Variable, keras.optimizers.Optimizer, tf.Variable, tf.data.Dataset)


def checksum(array: Any) -> int:
    """Return a checksum of an array's content; for a large one, of evenly spaced blocks."""
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
    """Return the checksums of its large arrays as of now."""
    return {name: checksum(value) for name, value in vars(owner).items() if _large(value)}


class Attributes(Object):
    """A callback's attributes that are kept as variables of the script, which may hold the same objects.

    For Keras' own callbacks these are the functions that they were given; `read` keeps their counters.
    """

    @property
    def variables(self) -> Mapping[str, Any]:
        """Return the present attributes."""
        own = is_own(type(self._owner))
        found = {name: value for name, value in vars(self._owner).items() if name not in KERAS_OWN}
        return {
            name: value
            for name, value in found.items()
            if (own and not (_large(value) or _variables(value))) or type(value) is FunctionType
        }


def read(owner: Any, marks: Mapping[str, int], kept: Container[str] = ()) -> tuple[dict[str, bytes], list[str]]:
    """Return its attributes, pickled, without large arrays that are as marked; and the names of all others.

    `kept`: names of attributes that are kept elsewhere.
    """
    found, others = {}, []
    for name, value in list(vars(owner).items()):
        if name in KERAS_OWN or name in kept or (_large(value) and marks.get(name) == checksum(value)):
            continue
        try:
            found[name] = _pickled(value)
        except Exception:  # anything may refuse, in its own way
            others.append(name)
    return found, others


def write(owner: Any, state: Mapping[str, bytes]) -> None:
    """Restore what `read` returned. An array of the same shape is changed in place: others may hold it, too."""
    for name, data in state.items():
        value, live = pickle.loads(data), vars(owner).get(name)
        alike = isinstance(live, np.ndarray) and isinstance(value, np.ndarray) and live.flags.writeable
        if alike and (live.shape, live.dtype) == (value.shape, value.dtype):
            live[...] = value
        else:
            vars(owner)[name] = value


def read_variables(owner: Any, known: frozenset[int]) -> dict[str, list[Any]]:
    """Return the values of the Keras variables in its attributes.

    `known`: ids of variables that are saved elsewhere.
    """
    found = {name: _variables(value) for name, value in vars(owner).items() if name not in KERAS_OWN}
    return {
        name: [v.numpy() for v in held] for name, held in found.items() if held and not known.issuperset(map(id, held))
    }


def write_variables(owner: Any, state: Mapping[str, list[Any]]) -> list[str]:
    """Restore what `read_variables` returned. Return the names of those that now hold something else."""
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
