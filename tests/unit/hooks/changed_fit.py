"""Fits of which a stop changes something; run by `test_keras_fit.py`, with a folder.

The first generation stops each of them; the second one prints what it finds in the end.
"""

import json
import os
import signal
import sys
from pathlib import Path

import fits
import keras
import tensorflow as tf


class Begins(keras.callbacks.Callback):
    count = 0  # of the class: values of the callback itself are kept

    def on_train_begin(self, logs=None):
        Begins.count += 1


def drawn_in_a_map(folder):
    def noisy(x, y):
        return tf.concat([x[:1], x[1:] + tf.random.uniform((4,))], 0), y

    train = tf.data.Dataset.from_tensor_slices(fits.data()).shuffle(fits.ROWS).map(noisy).batch(fits.BATCH)
    model = fits.network()
    model.fit(train, epochs=3, callbacks=[fits.Stop(), Begins()], verbose=0)
    return {"rows": sorted(set(model.layers[0].seen.numpy().tolist())), "begins": Begins.count}


def other_steps(folder):
    strategy, batch = fits.shaped()
    x, y = fits.data()
    model = fits.mirrored(strategy)
    train = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).map(lambda x, y: (x, y))
    history = model.fit(train, epochs=2, callbacks=[fits.Stop()], verbose=0)
    return {"epochs": len(history.epoch)}


def backed_up(folder):
    callbacks = [keras.callbacks.BackupAndRestore(folder / "backup"), fits.Stop()]
    model = fits.network()
    history = model.fit(*fits.data(), fits.BATCH, epochs=3, callbacks=callbacks, verbose=0)
    return {"rows": sorted(set(model.layers[0].seen.numpy().tolist())), "epochs": history.epoch}


def asked_between(folder):
    """Asked to stop between its fits in the first generation, behind them in the second."""
    first, second = fits.network(), fits.network()
    epochs = first.fit(*fits.data(), fits.BATCH, epochs=2, verbose=0).epoch
    if os.environ["RESHAPE_GENERATION"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    more = second.fit(*fits.data(), fits.BATCH, epochs=3, verbose=0).epoch
    assert os.environ["RESHAPE_GENERATION"] == "2", "it ends before the next fit"
    os.kill(os.getpid(), signal.SIGTERM)
    return {"epochs": [epochs, more], "rows": sorted(set(first.layers[0].seen.numpy().tolist()))}


def trained_outside(folder):
    """Ends in the middle of its loop in the first generation, as one that is killed."""
    x, y = fits.data()
    model = fits.network()
    model.fit(x, y, fits.BATCH, epochs=1, verbose=0)
    before = int(model.optimizer.iterations.numpy())
    for batch in range(5):
        model.train_on_batch(x[:8], y[:8])
        if batch == 3 and os.environ["RESHAPE_GENERATION"] == "1":
            raise SystemExit(143)
    return {"before": before, "after": int(model.optimizer.iterations.numpy())}


def beside_callbacks(folder):
    """Collects in a variable of the script, by a function that a callback calls."""
    ended = []
    collect = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ended.append(epoch))
    fits.network().fit(*fits.data(), fits.BATCH, epochs=3, callbacks=[fits.Stop(), collect], verbose=0)
    return {"epochs": ended}


WAYS = {
    drawn_in_a_map: [0, 1, 2],
    other_steps: [0, 0, 2],
    backed_up: [0, 2, 1],
    beside_callbacks: [0, 1, 2],
    asked_between: None,
    trained_outside: None,
}
for way, stop in WAYS.items():
    folder, generation = Path(sys.argv[1], way.__name__), os.environ["RESHAPE_GENERATION"]
    folder.mkdir(exist_ok=True)
    fits.begin_anew(folder, generation)
    fits.Stop.at, fits.Stop.fits = stop if generation == "1" else None, 0
    try:
        found = way(folder)
        assert generation == "2", f"{way.__name__} was not stopped"
        sys.stdout.write(f"found {way.__name__} {json.dumps(found)}\n")
    except SystemExit as ended:
        assert ended.code == 143, ended.code
