"""Trains a small Keras network on digits: an ordinary `fit`, made elastic by one callback.

Run by hand or as a job; see README.md beside it. SIGTERM: it saves at the next batch boundary and exits
with code 143; started again, it resumes at the same batch.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
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

from reshape_hooks import keras as elastic
from reshape_hooks import plain


def build(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu", kernel_initializer="he_normal"),
            keras.layers.Dense(10, kernel_initializer="he_normal"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def every_gpu(here: plain.Environment) -> contextlib.AbstractContextManager[Any]:
    """Return the scope of a replica on each GPU, if this process sees more than one real GPU."""
    real = 0 if here.emulated else len(tf.config.list_physical_devices("GPU"))
    return tf.distribute.MirroredStrategy().scope() if real > 1 else contextlib.nullcontext()


class SaveAndLook(elastic.SaveAndExit):
    """Also validates at regular numbers of batches."""

    data: digits.Digits
    every: int

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        super().on_train_batch_end(batch, logs)
        if self.every and self.position.step % self.every == 0:
            scores = self.model(self.data.test_x, training=False)  # `evaluate` would reset the metrics of this epoch
            right = keras.ops.argmax(scores, 1) == self.data.test_y
            plain.say(val_accuracy=float(keras.ops.mean(keras.ops.cast(right, "float32"))))


def train(options: digits.Options) -> None:
    """Train from the newest checkpoint to the last step; ends the process with 143 when stopped."""
    here = plain.environment()
    data = digits.load()
    checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
    position = elastic.Position(options.total, options.steps_per_epoch)
    stop = plain.StopFlag(here.announce)
    callback = SaveAndLook(checkpoints, stop, position, here, save_every=options.save_every)
    callback.data, callback.every = data, options.evaluate_every
    with every_gpu(here):
        model = elastic.restore(checkpoints, position, here.prefer) or build(options.seed)
    plain.say(job=here.job_id, gpus=len(here.gpus), begins_at=position.step, emulated="yes" if here.emulated else "no")
    elastic.fit(model, data.train_x, data.train_y, batch_size=options.batch_size, seed=options.seed, callback=callback)
    callback.set_model(model)  # a run that was complete when it began has not called fit
    callback.save()
    loss, accuracy = model.evaluate(data.test_x, data.test_y, verbose=0)
    plain.say(finished="yes", val_loss=loss, val_accuracy=accuracy)


def main() -> int:
    try:
        train(digits.options("Train digits in Keras. SIGTERM: save and exit with code 143."))
    except SystemExit as stopped:
        if isinstance(stopped.code, str):
            sys.stderr.write(f"{stopped.code}\n")
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except plain.CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    elastic.leave(main())
