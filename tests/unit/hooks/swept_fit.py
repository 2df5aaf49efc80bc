"""Trains several times with a plain `model.fit`, as sweeps do; run by `test_keras_claims.py`.

Called as `swept_fit.py RATE`, or without arguments for all rates, of which those with a result are skipped.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np


class Stop(keras.callbacks.Callback):
    """Asks this process to stop behind the batch that the variable STOP names: `RATE NUMBER`."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if os.environ.get("STOP") == f"{self.rate} {self.batches}":
            os.kill(os.getpid(), signal.SIGTERM)


def trial(rate):
    x = np.random.default_rng(1).random((64, 4), "float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(float(rate)), "mse")
    model.fit(x, x.sum(1), 16, epochs=3, verbose=0, callbacks=[Stop(rate)])
    digest = hashlib.md5(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
    Path(f"result-{rate}").write_text(f"{digest} {model.evaluate(x, x.sum(1), verbose=0)}")


keras.utils.set_random_seed(7)
for rate in sys.argv[1:] or ("0.1", "0.01", "0.001"):
    if sys.argv[1:] or not Path(f"result-{rate}").exists():
        trial(rate)
