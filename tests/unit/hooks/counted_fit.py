"""A plain fit that prints what its first batch has cost: traces and iterators; run by `test_keras_fit.py`.

The first generation is asked to stop in its epoch 6.
"""

import os
import signal
import sys

import keras
import numpy as np
from tensorflow.python.data.ops import iterator_ops

traces, iterators = [], []
made = iterator_ops.OwnedIterator.__init__


def make(self, *args, **kwargs):
    iterators.append(1)
    made(self, *args, **kwargs)


iterator_ops.OwnedIterator.__init__ = make


class Traced(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            traces.append(1)
        return x


class FirstBatch(keras.callbacks.Callback):
    seen = False  # of this process

    def on_train_batch_end(self, batch, logs=None):
        if not FirstBatch.seen:
            sys.stdout.write(f"traces={len(traces)} iterators={len(iterators)}\n")
        FirstBatch.seen = True

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 6 and os.environ["RESHAPE_GENERATION"] == "1":
            os.kill(os.getpid(), signal.SIGTERM)


x = np.random.rand(32, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), Traced(), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
model.fit(x, x[:, 0], 8, epochs=8, verbose=0, callbacks=[FirstBatch()])
