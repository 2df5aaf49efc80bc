"""Decides for which data a pass can be resumed at its n-th batch, with no sample repeated or skipped.

Promises: what is not known to be exact is refused with a reason. A `tf.data` pipeline is exact if it keeps nothing
beyond an iterator except its shuffles' seeds, which advance with each iterator that is created. Called by `batches` and
`known_by`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from reshape_hooks.keras_fit import attributes, variables

SHUFFLES = ("_ShuffleDataset", "_RandomDataset")
MAPS = ("_MapDataset", "_ParallelMapDataset")
KEEPS = ("_SaveDataset", "_SnapshotDataset", "_DataServiceDatasetV1", "_DataServiceDatasetV2")
CHANGES = ("Assign", "RngReadAndSkip", "StatefulUniform", "StatefulStandardNormal", "LookupTableInsert")


class NotExact(Exception):
    """Raised when these data cannot be resumed exactly; the argument says why, as the end of a sentence."""


def check(adapter: Any, steps_per_epoch: int | None) -> int:
    """Return a checksum of the data, as far as known without reading files. Raises NotExact."""
    if isinstance(adapter, ArrayDataAdapter):
        return _sum(tree.flatten(adapter._inputs))
    if isinstance(adapter, TFDatasetAdapter):
        if not isinstance(adapter.get_tf_dataset(), tf.data.Dataset):
            raise NotExact("its data set was distributed by the script")
        if steps_per_epoch is not None and adapter.get_tf_dataset().cardinality() == tf.data.UNKNOWN_CARDINALITY:
            raise NotExact("it is not known where its tf.data pipeline ends, with steps_per_epoch")
        return _check_dataset(adapter.get_tf_dataset())
    if not isinstance(adapter, PyDatasetAdapter):
        raise NotExact("its data come from a generator or loader that cannot be set back; use tf.data or a PyDataset")
    if steps_per_epoch is not None or adapter.num_batches is None:
        raise NotExact("an epoch of it is not one pass over its PyDataset")
    if adapter.py_dataset.use_multiprocessing:
        raise NotExact("its PyDataset is read by other processes")
    _, others = attributes.read(adapter.py_dataset, attributes.mark(adapter.py_dataset))
    living = [name for name in others if not _constant(vars(adapter.py_dataset)[name])]
    if living:
        raise NotExact(f"its PyDataset has attributes that cannot be saved ({', '.join(living)})")
    return 0


def content(data: Any) -> int:
    """Return a checksum of a `fit`'s data, as far as it is in memory; 0 if unknown."""
    try:
        found = [
            node for one in tree.flatten(data) for node in (_walk(one) if isinstance(one, tf.data.Dataset) else [one])
        ]
        return _sum([one for node in found for one in tree.flatten(getattr(node, "_tensors", node))])
    except Exception:  # anything may be given as data
        return 0


def _constant(value: Any) -> bool:
    """Return whether it has no state that matters here: functions, modules, locks."""
    return callable(value) or type(value).__name__ in ("module", "lock", "RLock", "_thread.lock")


def _check_dataset(dataset: Any) -> int:
    if dataset.options().deterministic is False:
        raise NotExact("its tf.data pipeline does not keep an order")
    found = list(_walk(dataset))
    for node in found:
        _check_node(node)
    return _sum([one for node in found for one in tree.flatten(getattr(node, "_tensors", None) or ())])


def _walk(dataset: Any) -> Iterator[Any]:
    yield dataset
    for one in dataset._inputs():
        yield from _walk(one)


def _check_node(node: Any) -> None:
    kind = type(node).__name__
    if kind in KEEPS or (kind == "CacheDataset" and (_cached_in_file(node) or any(map(_random, _walk(node))))):
        raise NotExact(f"its tf.data pipeline keeps data beyond an epoch ({kind.strip('_')})")
    if getattr(node, "_deterministic", None) == "false":
        raise NotExact("its tf.data pipeline does not keep an order")
    if kind in SHUFFLES and int(node._seed) == 0 == int(node._seed2):
        raise NotExact("its tf.data pipeline was shuffled without a seed")
    for function in node._functions():
        graph = getattr(function, "function", function).graph
        if getattr(graph, "reshape_unseeded", False):
            raise NotExact("it is shuffled without a seed inside its tf.data pipeline")
        for operation in variables.nodes(graph):
            if operation.op in variables.PYTHON:
                raise NotExact("its tf.data pipeline calls Python")
            if operation.op.startswith(CHANGES):
                raise NotExact("its tf.data pipeline changes variables")
            if variables.draws(operation) and not variables.seeded(operation) and kind not in MAPS:
                raise NotExact("its tf.data pipeline chooses samples at random without a seed")


def _random(node: Any) -> bool:
    graphs = [getattr(function, "function", function).graph for function in node._functions()]
    return type(node).__name__ in SHUFFLES or any(variables.draws(op) for g in graphs for op in variables.nodes(g))


def _cached_in_file(node: Any) -> bool:
    return bool(node._filename.numpy()) if hasattr(node._filename, "numpy") else bool(node._filename)


def _sum(arrays: list[Any]) -> int:
    """Return a checksum of arrays in order; anything but arrays in memory is ignored."""
    total = 0
    for array in arrays:
        if isinstance(array, tf.Tensor) and array.dtype.is_numpy_compatible:
            array = array.numpy()
        if hasattr(array, "__array__"):
            total = (total * 31 + attributes.checksum(array)) % (1 << 32)
    return total
