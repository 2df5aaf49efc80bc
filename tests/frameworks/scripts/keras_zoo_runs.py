"""Trains models of the zoo as one generation of their jobs; run by `test_zoo.py`.

Called as a process: folder, then models. One process for all, as each start of TensorFlow takes seconds. The first
RESHAPE_GENERATION stops each model half way. Prints a line for each: model, batches done, then losses of all epochs.
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
    """Counts the batches that this process does; after half of all the first generation is asked to stop."""

    done = 0  # of the class: values of the callback itself are kept from one generation to the next

    def on_train_batch_end(self, batch, logs=None):
        Stop.done += 1
        if generation == "1" and Stop.done == HALF:
            os.kill(os.getpid(), signal.SIGTERM)


folder, *names = sys.argv[1:]
generation = os.environ["RESHAPE_GENERATION"]
for name in names:
    of_model = Path(folder, name)
    of_model.mkdir(exist_ok=True)
    begin_anew(of_model, generation)
    keras.utils.set_random_seed(7)
    losses = []
    Stop.done = 0
    model, x, y = keras_zoo.MODELS[name](SAMPLES, 7)
    try:
        losses = model.fit(x, y, BATCH, EPOCHS, callbacks=[Stop()], verbose=2).history["loss"]
    except SystemExit as ended:
        assert (generation, ended.code) == ("1", 143), (name, ended.code)
    print("zoo", name, Stop.done, *losses, flush=True)
