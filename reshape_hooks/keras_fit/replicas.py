"""Lets a `fit` on several GPUs continue on another number of them, with the same samples in each step.

A script often scales its batch by the number of replicas, which differs after a reshape. A fit keeps the batch and the
steps per epoch with which it began, so that steps, epochs and learning rates stay the same. Called by `script` and
`call`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from reshape_hooks import plain

KNOWN = ("_DefaultDistributionStrategy", "OneDeviceStrategy", "MirroredStrategy")
SIZES = ("batch_size", "steps_per_epoch", "validation_batch_size", "validation_steps")
DATA = ("x", "validation_data")
KERAS_BATCH = 32  # if a script specifies none


def sizes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `fit`'s arguments say about its batches; for data sets the rows per batch, None if unknown."""
    return {**{name: given[name] for name in SIZES}, **{name: _batch_of(given[name])[0] for name in DATA}}


def keep(given: dict[str, Any], was: Mapping[str, Any], replicas: int) -> None:
    """Give a `fit` the batches with which it began: `was`, which `sizes` returned then."""
    given.update({name: was[name] for name in SIZES})
    for name in DATA:
        batch, again = _batch_of(given[name])
        if batch is not None and was[name] not in (None, batch):
            given[name] = again(was[name])
    rows = was["x"] or was["batch_size"] or KERAS_BATCH
    if rows % replicas:
        plain.warn(f"reshape: {rows} samples a step do not divide by {replicas} GPUs: some count a little more")


@contextlib.contextmanager
def untuned() -> Iterator[None]:
    """Disable autotuning of what feeds each device while entered: there is nothing to tune.

    The tuning threads end only at their next turn, and double their wait each time, one after the other: an epoch began
    minutes late, and SIGTERM was not answered meanwhile.
    """
    theirs = multi_device_iterator_ops._create_device_dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    multi_device_iterator_ops._create_device_dataset = lambda *given: theirs(*given).with_options(options)
    try:
        yield
    finally:
        multi_device_iterator_ops._create_device_dataset = theirs


def _batch_of(data: Any) -> tuple[int | None, Any]:
    """Return a data set's rows per batch, and a function that recreates it with other batches.

    None unless only `prefetch`, `repeat` and options follow its `batch`: others may see the batch.
    """
    kind = type(data).__name__
    inner: Any = getattr(data, "_input_dataset", None)
    if kind in ("_BatchDataset", "_ParallelBatchDataset"):
        return int(data._batch_size), lambda size: inner.batch(size, drop_remainder=bool(data._drop_remainder))
    wraps = {
        "_PrefetchDataset": lambda one: one.prefetch(int(data._buffer_size)),
        "_RepeatDataset": lambda one: one.repeat(int(data._count)),
        "_OptionsDataset": lambda one: one.with_options(data._options_attr),
    }
    if kind not in wraps:
        return None, None
    batch, again = _batch_of(inner)
    return batch, lambda size: wraps[kind](again(size))
