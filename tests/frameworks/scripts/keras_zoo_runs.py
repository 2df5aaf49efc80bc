"""Trains models of the zoo, each stopped half way and resumed; run by `test_zoo.py`.

Called as a process: folder, then models. One process for all, as each start of TensorFlow takes seconds. Prints a line
for each: model, losses of its epochs, batches that the first and the second start did.
"""

import os
import signal
import sys
from pathlib import Path

import keras
import keras_zoo

from tests.unit.hooks.fits import begin_anew

SAMPLES, BATCH, EPOCHS = 40, 8, 2
HALF = SAMPLES // BATCH * EPOCHS // 2


class Stop(keras.callbacks.Callback):
    """Notes each batch of this process; after half of all it is asked to stop."""

    batches = []

    def on_train_batch_end(self, batch, logs=None):
        Stop.batches.append(batch)
        if len(Stop.batches) == HALF:
            os.kill(os.getpid(), signal.SIGTERM)


def start(folder, name, generation):
    """Train as a new process of the job would, to its end or until it is stopped."""
    folder.mkdir(exist_ok=True)
    begin_anew(folder, generation)
    keras.utils.set_random_seed(7)
    model, x, y = keras_zoo.MODELS[name](SAMPLES, 7)
    return model.fit(x, y, BATCH, EPOCHS, callbacks=[Stop()], verbose=2)


for name in sys.argv[2:]:
    Stop.batches.clear()
    try:
        start(Path(sys.argv[1], name), name, "1")
    except SystemExit as ended:
        assert ended.code == 143, ended.code
    first = len(Stop.batches)
    losses = start(Path(sys.argv[1], name), name, "2").history["loss"]
    print("zoo", name, *losses, first, len(Stop.batches) - first, flush=True)
