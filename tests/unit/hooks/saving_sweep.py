"""Trains twice with the callback `SaveAndExit`, one after the other; run by `test_keras_claims.py`.

The variable STOP names a rate and a step, at which this process is asked to stop.
"""

import os
import signal
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np

from reshape_hooks import plain
from reshape_hooks.keras import Position, SaveAndExit, fit, restore

rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 4)), rng.integers(0, 2, 64)


class Stopping(SaveAndExit):
    rate = 0.0

    def on_train_batch_end(self, batch, logs=None):
        if os.environ["STOP"] == f"{self.rate} {self.position.step + 1}":
            os.kill(os.getpid(), signal.SIGTERM)
        super().on_train_batch_end(batch, logs)


def train(rate):
    keras.utils.set_random_seed(1)
    here = plain.environment()
    checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
    position = Position(total=8, steps_per_epoch=4)
    model = restore(checkpoints, position, here.prefer)
    if model is None:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
        model.compile(keras.optimizers.SGD(rate), "binary_crossentropy")
    callback = Stopping(checkpoints, plain.StopFlag(here.announce), position, here)
    callback.rate = rate
    fit(model, x, y, batch_size=16, seed=0, callback=callback)
    Path(f"result-{rate}").write_text(repr([weights.tolist() for weights in model.get_weights()]))


for each in (0.1, 0.5):
    train(each)
