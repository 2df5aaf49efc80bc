"""Lets a `fit` over several GPUs go on over another number of them: the same samples in each step as before.

A script often scales its batch by the number of replicas, which is another one after a reshape. A fit keeps the batch
and the steps per epoch with which it began, so that steps, epochs and learning rates stay what they were. Callers:
`script`, `call`.
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
KERAS_BATCH = 32  # where a script names none


def sizes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the arguments of a `fit` say of its batches; of data sets the rows in a batch, None if not known."""
    return {**{name: given[name] for name in SIZES}, **{name: _batch_of(given[name])[0] for name in DATA}}


def keep(given: dict[str, Any], was: Mapping[str, Any], replicas: int) -> None:
    """Let a `fit` have the batches that it began with: `was`, which `sizes` returned then."""
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
    """Let what feeds each device not be tuned while this is entered: there is nothing to tune.

    The threads that tune end only at their next turn, and wait twice as long for it each time, one after the other: an
    epoch began minutes late, and SIGTERM was not answered meanwhile.
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
    """Return the rows in each batch of a data set, and what makes it anew with other batches.

    None unless nothing but `prefetch`, `repeat` and options follows its `batch`: others may see the batch.
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
