"""Trains with plain `model.fit` in many ways, each as if it were a script of its own; run by `test_keras_fit.py`.

Called as a process with a folder, alike in each generation. The variable STOPS says at which fit, epoch and batch which
way is stopped.
It imports nothing of ours but what begins a new script in the same process, as each start of TensorFlow takes seconds.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf

ROWS, BATCH = 44, 8  # five whole batches and half a one
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 4)


class Stop(keras.callbacks.Callback):
    """Sends what is told to this process at one place: [fit, epoch, batch] or [fit, epoch, batch, "validation"]."""

    at, fits = None, 0

    def on_train_begin(self, logs=None):
        self.fit = Stop.fits
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.now([self.fit, self.epoch, batch])

    def on_test_batch_end(self, batch, logs=None):
        self.now([self.fit, self.epoch, batch, "validation"])

    def now(self, place):
        if place == Stop.at:
            os.kill(os.getpid(), signal.SIGTERM)


class Tally(keras.layers.Layer):
    """Counts in a weight how often each row was trained on; the row's number is the first column, which it hides."""

    def __init__(self, **of_weight):
        super().__init__()
        self.of_weight = of_weight

    def build(self, shape):
        self.seen = self.add_weight(shape=(ROWS,), initializer="zeros", trainable=False, name="seen", **self.of_weight)

    def call(self, x, training=False):
        if training:
            rows = keras.ops.cast(x[:, 0], "int32")
            replicas = tf.distribute.get_strategy().num_replicas_in_sync  # of whose values the mean is kept
            self.seen.assign_add(keras.ops.sum(keras.ops.one_hot(rows, ROWS), axis=0) * replicas)
        return x[:, 1:]


def data():
    x = np.random.rand(ROWS, 5).astype("float32")
    x[:, 0] = np.arange(ROWS)
    return x, (x[:, 1] + x[:, 2] > 1).astype("float32")[:, None]


def network(inputs=True, optimizer="adam", **compiled):
    head = [keras.Input((5,))] if inputs else []
    layers = [Tally(), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([*head, *layers])
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"], **compiled)
    return model


def result(model, *histories, **more):
    weights = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    return {"weights": weights, "history": [(h.epoch, h.history) for h in histories], **more}


def arrays(folder):
    x, y = data()
    callbacks = [
        Stop(),
        keras.callbacks.EarlyStopping("val_loss", patience=20, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True, monitor="val_loss"),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    ]
    model = network()
    seen = []
    callbacks.append(keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append(epoch)))
    history = model.fit(x, y, BATCH, epochs=4, verbose=2, validation_data=(x, y), callbacks=callbacks)
    wait = callbacks[1].best_epoch, callbacks[2].wait
    return result(model, history, rows=model.layers[0].seen.numpy(), log=(folder / "log.csv").read_text(), wait=wait)


def seeded_arrays(folder):
    keras.utils.set_random_seed(5)
    x, y = data()
    model = network()
    rows = {0: 2.0, 1: 1.0}
    history = model.fit(x, y, BATCH, epochs=3, verbose=0, class_weight=rows, shuffle="batch", callbacks=[Stop()])
    return result(model, history, rows=model.layers[0].seen.numpy())


def dataset(folder):
    x, y = data()
    whole = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS)
    train, test = whole.batch(BATCH).prefetch(2), whole.take(20).batch(BATCH)
    model = network(inputs=False)
    history = model.fit(train, epochs=4, validation_data=test, validation_freq=2, callbacks=[Stop()], verbose=2)
    return result(model, history, rows=model.layers[0].seen.numpy())


def repeated(folder):
    x, y = data()
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(16).repeat().batch(BATCH)
    model = network()
    history = model.fit(train, epochs=5, initial_epoch=1, steps_per_epoch=4, callbacks=[Stop()], verbose=2)
    return result(model, history)


def unknown_length(folder):
    x, y = data()
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS).filter(lambda x, y: x[0] >= 0).batch(BATCH)
    model = network()
    history = model.fit(train, epochs=4, callbacks=[Stop()], verbose=2)
    return result(model, history, rows=model.layers[0].seen.numpy())


class Rows(keras.utils.PyDataset):
    def __init__(self, x, y, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.order, self.rng = x, y, np.arange(ROWS), np.random.default_rng()

    def __len__(self):
        return -(-ROWS // BATCH)

    def __getitem__(self, index):
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        noise = np.random.rand(len(rows), 5).astype("float32") * [0, 1, 1, 1, 1] if self.workers == 1 else 0
        return (self.x[rows] + noise).astype("float32"), self.y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.order)
        self.rng.shuffle(self.order)


def py_dataset(folder):
    model = network()
    history = model.fit(Rows(*data()), epochs=4, callbacks=[Stop()], verbose=2)
    return result(model, history, rows=model.layers[0].seen.numpy())


def threads(folder):
    model = network()
    history = model.fit(Rows(*data(), workers=2), epochs=3, shuffle=False, callbacks=[Stop()], verbose=2)
    return result(model, history, rows=model.layers[0].seen.numpy())


def several_steps(folder):
    x, y = data()
    model = network(steps_per_execution=4)
    weights = np.linspace(0, 1, ROWS)
    history = model.fit(
        x, y, BATCH, epochs=4, sample_weight=weights, callbacks=[Stop()], validation_split=0.25, verbose=2
    )
    return result(model, history)


def fine_tuning(folder):
    x, y = data()
    model, stop = network(), Stop()
    first = model.fit(x, y, BATCH, epochs=2, callbacks=[stop], verbose=2)
    score = model.evaluate(x, y, verbose=0)
    Stop.fits += 1
    model.layers[1].trainable = False
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "binary_crossentropy")
    second = model.fit(x, y, BATCH, epochs=2, callbacks=[stop], verbose=2)
    Stop.fits += 1
    other = network()
    third = other.fit(x, y, BATCH, epochs=2, callbacks=[stop], verbose=2)
    return result(model, first, second, third, score=score, other=other.get_weights())


class TwoOptimizers(keras.Model):
    """As adversarial networks train: a train step of its own, a variable that is no weight."""

    def __init__(self):
        super().__init__()
        self.one, self.two = keras.layers.Dense(4), keras.layers.Dense(1)
        self.count = tf.Variable(0.0)

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second

    def call(self, x):
        return self.two(self.one(x))

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(x[:, 1:]) - y) ** 2)
        for layer, optimizer in ((self.one, self.first), (self.two, self.second)):
            optimizer.apply_gradients(
                zip(tape.gradient(loss, layer.trainable_weights), layer.trainable_weights, strict=True)
            )
        self.count.assign_add(loss)
        return {"loss": loss, "count": self.count}


def own_step(folder):
    x, y = data()
    model = TwoOptimizers()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.5))
    history = model.fit(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), epochs=3, callbacks=[Stop()], verbose=2
    )
    weights = [v.numpy() for v in [*model.variables, *model.first.variables, *model.second.variables, model.count]]
    return {"weights": weights, "history": [(history.epoch, history.history)]}


def on_cpus(count):
    devices = [f"CPU:{n}" for n in range(count)]
    # By collectives all strategies of a process must have as many replicas, and a CPU has too few threads for them.
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def replicas(folder):
    x, y = data()
    with on_cpus(2).scope():
        model = network()
    history = model.fit(x, y, BATCH, epochs=3, callbacks=[Stop()], verbose=2)
    return result(model, history)


SHAPES = [4, 1, 2]  # replicas, by generation


def shaped():
    """What a script gets from `MirroredStrategy()`, and the batch that many scripts make of it."""
    count = SHAPES[int(os.environ["RESHAPE_GENERATION"]) - 1]
    return on_cpus(count), 2 * count


def mirrored(strategy):
    with strategy.scope():
        rate = keras.optimizers.schedules.CosineDecay(0.02, 20)
        tally = Tally(aggregation="mean")
        layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
        model = keras.Sequential([keras.Input((5,)), tally, *layers])
        model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"])
    return model


def resized(folder):
    x, y = data()
    strategy, batch = shaped()
    model = mirrored(strategy)
    history = model.fit(x, y, batch, epochs=5, validation_data=(x, y), callbacks=[Stop()], verbose=2)
    return result(model, history, rows=model.layers[0].seen.numpy())


def resized_dataset(folder):
    x, y = data()
    strategy, batch = shaped()
    model = mirrored(strategy)
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS).batch(batch).repeat().prefetch(2)
    test = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)
    history = model.fit(
        train, epochs=5, steps_per_epoch=-(-ROWS // batch), validation_data=test, callbacks=[Stop()], verbose=2
    )
    return result(model, history, rows=model.layers[0].seen.numpy())


def half_precision(folder):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        x, y = data()
        model = network()
        history = model.fit(x, y, BATCH, epochs=2, callbacks=[Stop()], verbose=2)
        return result(model, history)
    finally:
        keras.mixed_precision.set_global_policy("float32")


def collector():
    """Return a callback and a function that returns what it has seen, which nothing else holds."""
    losses = []
    return keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    ), lambda: losses


class Diary(keras.callbacks.Callback):
    """Writes into lists that others hold, too."""

    told = 0

    def __init__(self, rows, best):
        super().__init__()
        self.rows, self.best, self.tests = rows, best, []

    def on_train_begin(self, logs=None):
        self.rows.append("begins")

    def on_train_batch_end(self, batch, logs=None):
        Diary.told += 1

    def on_test_batch_end(self, batch, logs=None):
        self.tests.append(np.random.rand())

    def on_epoch_end(self, epoch, logs=None):
        self.rows.append(epoch)
        if logs["loss"] < self.best.get("loss", np.inf):
            self.best.update(loss=logs["loss"], weights=self.model.get_weights())


def beside(folder):
    """Its callbacks change what the script holds: lists, a class, variables, a second model, a generator."""
    x, y = data()
    model, average = network(), network()
    model.build((None, 5))
    average.set_weights(model.get_weights())
    rate, drawn, rng, steps = tf.Variable(0.01), [], np.random.default_rng(2), {"count": 0}
    rows, best, alike = [], {}, [[], []]
    Diary.told = 0
    collects, collected = collector()

    def average_weights(batch, logs):
        weights = zip(average.get_weights(), model.get_weights(), strict=True)
        average.set_weights([0.9 * one + 0.1 * other for one, other in weights])
        steps["count"] += 1
        steps["last"] = tf.constant(logs["loss"])

    def epoch_ends(epoch, logs):
        rate.assign(rate * 0.9)
        drawn.append(rng.random())
        alike[0].append(epoch)

    alike[1] = alike[0]
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch: float(rate.numpy())),
        keras.callbacks.LambdaCallback(on_train_batch_end=average_weights, on_epoch_end=epoch_ends),
        collects, Diary(rows, best), Diary(rows, best), Stop(),
    ]  # fmt: skip
    history = model.fit(x, y, BATCH, epochs=4, verbose=2, validation_data=(x, y), callbacks=callbacks)
    first, second = callbacks[3:5]
    one = [first.rows is second.rows is rows, first.best is second.best is best, alike[0] is alike[1]]
    others = [Diary.told, steps, drawn, collected(), [first.tests, second.tests], float(rate.numpy())]
    return result(model, history, rows=rows, best=repr(best), average=average.get_weights(), one=one, others=others)


# Those of most generations first: data sets that shuffle without a seed are given one by their number in the process.
WAYS = [
    resized, resized_dataset, arrays, seeded_arrays, dataset, repeated, unknown_length, py_dataset, threads,
    several_steps, fine_tuning, own_step, replicas, half_precision, beside,
]  # fmt: skip


def begin_anew(folder, generation):
    """What a new process of a job that is called like the folder would find."""
    from tensorflow.python.data.util import random_seed
    from tensorflow.python.eager import context

    os.environ.update(RESHAPE_JOB_ID=folder.name, RESHAPE_CHECKPOINTS=str(folder / "checkpoints"))
    os.environ.update(RESHAPE_ANNOUNCE=str(folder / "announce"), RESHAPE_GENERATION=generation)
    random.seed(folder.name)
    np.random.seed(len(folder.name))
    context.context()._seed = None
    for cell in random_seed.get_seed.__closure__ or ():  # ours: the next data set without a seed is the first one again
        if isinstance(cell.cell_contents, list):
            cell.cell_contents.clear()
    keras.utils.clear_session()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if "reshape_hooks.keras_fit.script" in sys.modules:
        sys.modules["reshape_hooks.keras_fit.script"].Script._this = None
    from reshape_hooks.keras_fit import call

    call.leave = sys.exit  # else the first way that is stopped would be the last


def main():
    root, generation, stops = Path(sys.argv[1]), os.environ["RESHAPE_GENERATION"], json.loads(os.environ["STOPS"])
    for way in WAYS:
        folder = root / way.__name__
        folder.mkdir(exist_ok=True)
        if (folder / "ended").exists() or (len(sys.argv) > 2 and way.__name__ not in sys.argv[2:]):
            continue
        begin_anew(folder, generation)
        Stop.at, Stop.fits = stops.get(way.__name__), 0
        try:
            found = way(folder)
        except SystemExit as ended:
            assert ended.code == 143, ended.code
            continue
        assert Stop.at is None, f"{way.__name__} was not stopped"
        (folder / "ended").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
