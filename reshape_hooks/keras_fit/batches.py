"""Feeds `fit` with the batches of its data, in a resumed process from the one at which it was stopped.

Promises: the batches are those of an undisturbed run, in the same order. Keras creates iterators at several places of
an epoch, and each one changes what a reshuffled data set yields next; so Keras' own code repeats the loops of earlier
epochs, without drawing from the iterators, and the interrupted pass is drawn up to its position. A PyDataset is instead
reset to its state at the beginning of the interrupted epoch. Called by `call`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from tensorflow.python.eager import context

from reshape_hooks import seeds
from reshape_hooks.keras import build_state
from reshape_hooks.keras_fit import attributes, pipelines, streams

ENDED = (StopIteration, tf.errors.OutOfRangeError)


class ResumableBatches(TFEpochIterator):  # type: ignore[misc]  # Keras is untyped
    """The training batches of one `fit`. `call`: that fit; `why_not`: why it cannot be resumed with these data."""

    def __init__(self, call: Any, **given: Any) -> None:
        self.call, self.made, self.whole = call, 0, False
        self.seed = tf.Variable(0, dtype=tf.int64, trainable=False)
        unseeded = context.global_seed() is None
        with _shuffle_by(self.seed, call.index) if unseeded else contextlib.nullcontext():
            super().__init__(**given)
        adapter = self.data_adapter
        self.python = adapter.py_dataset if isinstance(adapter, PyDatasetAdapter) else None
        self.marks = attributes.mark(self.python) if self.python is not None else {}
        self.why_not, self.data = "", 0
        try:
            self.data = pipelines.check(adapter, self.steps_per_epoch)
        except pipelines.NotExact as why:
            self.why_not = str(why)
        self.unknown_length = self.num_batches is None
        self.begun_with: Any = None  # of the current pass over a PyDataset
        # Their iterators share nothing, and each epoch creates its own: only its number counts.
        self.apart = isinstance(adapter, ArrayDataAdapter) and self.steps_per_epoch is None
        self.made_before = 0  # the current epoch
        self._iterator: Any = None
        self._behind = 0  # batches that are still to be drawn from it
        self._built = False

    def _get_iterator(self) -> Any:
        self.made += 1
        self.seed.assign(self.made)  # read when the first batch is drawn, which is before the next iterator is created
        return super()._get_iterator()

    def _enumerate_iterator(self) -> Iterator[Any]:
        at = self.call.take_position()
        self.whole = False
        if at is None:
            self._remember()
            self.made_before = self.made
            yield from super()._enumerate_iterator()
        else:
            self.replay_epochs(at, at["epoch"])
            if self.python is not None:
                self._set_back(at["pass"])
            if self.apart:
                self.made = at["made"]
            self.made_before = self.made
            steps = super()._enumerate_iterator()
            for _ in range(at["executions"]):
                self._pass_over(next(steps)[2])
            self.catch_up()
            self.call.restore()
            yield from steps
        self.whole = True

    def replay_epochs(self, at: Any, end: int) -> None:
        """Create the iterators of the epochs before `end` as originally, and those of their validations."""
        for epoch in range(at["first_epoch"], end if self.python is None else 0):
            if self.apart:
                pass
            elif self.unknown_length:  # each epoch ended when the data ran out
                self._pass_over(iter(self._get_iterator()))
                self._num_batches = at["num_batches"]
            else:
                for _, _, iterator in super()._enumerate_iterator():
                    self._pass_over(iterator)
            self.call.replay_validation(epoch)

    def replay_whole(self, at: Any) -> None:
        """Create the iterators of a finished fit, and build the model."""
        if self.python is not None:
            self._pass_over(next(super()._enumerate_iterator())[2])
            return
        self.replay_epochs(at, at["epoch"])
        steps = super()._enumerate_iterator()
        for _ in range(at["executions"]):
            self._pass_over(next(steps)[2])
        if at["whole"]:
            for _ in steps:
                pass
        self.call.replay_validation(at["epoch"])

    def catch_up(self) -> None:
        """Draw the skipped batches, of the current iterator only: nothing else remembers what was drawn."""
        with contextlib.suppress(*ENDED):
            for _ in range(self._behind):
                next(self._iterator)
        self._behind = 0

    def _pass_over(self, iterator: Any) -> None:
        """Count one call of the train function as done; really run the first one, as it builds model and optimizer."""
        if iterator is not self._iterator:
            self._iterator, self._behind = iterator, 0
        if self._built:
            self._behind += self.steps_per_execution
        else:
            self._built = True
            build_state(self.call.model, self._distributed_dataset.element_spec)
            self.call.model.train_function(iterator)

    def _remember(self) -> None:
        if self.python is not None:
            self.begun_with = attributes.read(self.python, self.marks)[0], streams.read()

    def _set_back(self, begun_with: Any) -> None:
        self.begun_with = begun_with
        attributes.write(self.python, begun_with[0])
        streams.write(begun_with[1])


@contextlib.contextmanager
def _shuffle_by(number: Any, index: int) -> Iterator[None]:
    """Let Keras shuffle arrays by a seed of the job, the fit and the iterator's `number`, not randomly.

    A global TensorFlow seed, which a script may set, would make the order of all epochs the same.
    """
    theirs = tf.random.shuffle

    def shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
        job = tf.constant(seeds.number() + index * 1_000_003, tf.int64)
        return tf.random.experimental.stateless_shuffle(value, tf.stack([job, number * 1_000_003 + value[0]]))

    tf.random.shuffle = shuffle
    try:
        yield
    finally:
        tf.random.shuffle = theirs
