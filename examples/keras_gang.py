"""Trains a small Keras model on digits in its own loop: in one process, or in many on several machines.

Keras 3 has no `fit` on several machines, so this trains under MultiWorkerMirroredStrategy by hand. Run by
hand, as a job or as a gang; see README.md beside it. SIGTERM: all ranks end after the same step with code
143, rank 0 has saved; started again, also with more or fewer ranks, they resume at that step.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import digits
from quiet import quiet_errors, without

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # else it takes all memory of each GPU it sees
try:
    with quiet_errors(), without("sklearn", "matplotlib"):
        import keras
        import tensorflow as tf
except ImportError as error:
    sys.exit(f"Keras on TensorFlow is not installed ({error}): pip install tensorflow, or use numpy_digits.py")

import numpy as np

from reshape_hooks import plain
from reshape_hooks import tensorflow as elastic
from reshape_hooks.locks import GpuLocks

STATE = "state.npz"


class Training:
    """Model and optimizer; a step trains each replica's share of the common batch."""

    def __init__(self, gang: elastic.Gang, data: digits.Digits, options: digits.Options) -> None:
        self.gang, self.data, self.options = gang, data, options
        self.compiled = tf.function(self._everywhere, reduce_retracing=True)
        with gang.strategy.scope():
            keras.utils.set_random_seed(options.seed)
            hidden = keras.layers.Dense(64, activation="relu", kernel_initializer="he_normal")
            self.model = keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dense(10)])
            self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
            self.optimizer.build(self.model.trainable_variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def begin(self, checkpoints: plain.Checkpoints, prefer: str | None) -> int:
        """Load the state of rank 0 into all ranks and return the steps done so far."""
        step, values = np.int64(0), [np.asarray(variable) for variable in self._variables()]
        saved = checkpoints.newest(prefer) if self.gang.rank == 0 else None
        if saved:
            with np.load(saved.path / STATE) as state:
                step, values = np.int64(saved.step), [state[f"arr_{number}"] for number in range(len(values))]
        step, *values = self.gang.share([step, *values])
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)
        return int(step)

    def step(self, number: int) -> tuple[float, float]:
        """Train one step; return loss and accuracy of the whole batch before it, equal for any number of ranks."""
        rows = digits.batch(number, self.options)
        x = self.gang.split(lambda replica, replicas: tf.constant(self.data.train_x[rows[replica::replicas]]))
        y = self.gang.split(lambda replica, replicas: tf.constant(self.data.train_y[rows[replica::replicas]]))
        loss, right = self.compiled(x, y).numpy() / self.options.batch_size
        return float(loss), float(right)

    def accuracy(self) -> float:
        """Return the accuracy on the validation digits."""
        return float((np.argmax(self.model(self.data.test_x), 1) == self.data.test_y).mean())

    def save(self, checkpoints: plain.Checkpoints, step: int) -> None:
        """Save the state; by rank 0 only, because all ranks have the same state."""
        if self.gang.rank == 0:
            values = [np.asarray(variable) for variable in self._variables()]
            checkpoints.save(step, {STATE: lambda path: np.savez(path, *values)})
            checkpoints.prune()

    def _variables(self) -> list[Any]:
        return [*self.model.variables, *self.optimizer.variables]

    def _everywhere(self, x: Any, y: Any) -> Any:
        told = self.gang.strategy.run(self._replica, (x, y))
        return self.gang.strategy.reduce(tf.distribute.ReduceOp.SUM, told, axis=None)

    def _replica(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            scores = self.model(x, training=True)
            loss = self.loss(y, scores)
            mean = loss / self.options.batch_size
        gradients = tape.gradient(mean, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)  # it adds up those of all replicas
        right = tf.reduce_sum(tf.cast(tf.argmax(scores, 1) == y, tf.float32))
        return tf.stack([loss, right])


def train(training: Training, here: plain.Environment) -> int:
    """Train from the newest checkpoint to the last step; return the process's exit code."""
    options, gang = training.options, training.gang
    checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
    stop, locks, pace = plain.StopFlag(here.announce), GpuLocks(here), plain.Pace(here.step_seconds)
    done = training.begin(checkpoints, here.prefer)
    plain.say(job=here.job_id, gpus=len(here.gpus), rank=gang.rank, ranks=gang.size, begins_at=done)
    labels = {"emulated": "yes"} if here.emulated else {}
    pace.start()
    while done < options.total:
        if gang.any(stop.stopping):
            training.save(checkpoints, done)
            return plain.STOPPED
        loss, accuracy = training.step(done)
        pace.wait()
        done += 1
        locks.used(done)
        epoch = (done - 1) // options.steps_per_epoch
        plain.say(step=done, total=options.total, epoch=epoch, loss=loss, accuracy=accuracy, **labels)
        if stop.take_save() or (options.save_every and done % options.save_every == 0):
            training.save(checkpoints, done)
        if options.evaluate_every and done % options.evaluate_every == 0:
            plain.say(val_accuracy=training.accuracy())
    training.save(checkpoints, done)
    plain.say(finished="yes", val_accuracy=training.accuracy())
    return 0


def main() -> int:
    options = digits.options("Train digits in TensorFlow on several machines. SIGTERM: save and exit with code 143.")
    gang = elastic.Gang()
    try:
        code = train(Training(gang, digits.load(), options), plain.environment())
    except plain.CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        code = 1
    gang.leave(code)


if __name__ == "__main__":
    main()
