"""Fits whose next batch cannot be found again, each as if it were a script of its own; run by `test_keras_fit.py`."""

import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

x, y = np.random.rand(16, 3).astype("float32"), np.random.rand(16, 1).astype("float32")
rows = tf.data.Dataset.from_tensor_slices((x, y))


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.uniform(tf.shape(x), seed=3)


class On(keras.layers.Layer):
    """A part of a model on a GPU of its own; here they are CPUs."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def call(self, x):
        with tf.device(self.device):
            return x * 2


class Rows(keras.utils.PyDataset):
    def __init__(self, **more):
        super().__init__(**more)
        self.left = () if more else sys.stdout

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return x[4 * index : 4 * index + 4], y[4 * index : 4 * index + 4]


def count(x, y):
    seen.assign_add(1)
    return x, y


def fit(data, layers=(), strategy=None, **compiled):
    from reshape_hooks.keras_fit import script

    script.Script._this = None
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse", **compiled)
    more = {} if isinstance(data, (tf.data.Dataset, Rows)) else {"steps_per_epoch": 2}
    model.fit(data, epochs=2, verbose=0, **more)
    if Path(os.environ["RESHAPE_ANNOUNCE"]).exists():
        sys.stdout.write("was announced\n")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def to_python(x, y):
    return tf.numpy_function(lambda v: v, [x], tf.float32), y


fit((x[:4], y[:4]) for _ in itertools.count())
fit(rows.map(to_python).map(lambda x, y: (tf.ensure_shape(x, (3,)), y)).batch(4))
fit(tf.data.Dataset.range(4).flat_map(lambda n: rows.skip(n).shuffle(4)).batch(4))
fit(rows.shuffle(16).cache().batch(4))
fit(rows.map(lambda x, y: (x, y), num_parallel_calls=2, deterministic=False).batch(4))
fit(rows.batch(4), run_eagerly=True)
fit(rows.batch(4), layers=[Noise()])
fit(rows.batch(4), layers=[On("GPU:0"), On("GPU:1")])
fit(rows.batch(4), strategy=tf.distribute.MultiWorkerMirroredStrategy())
os.environ["OMPI_COMM_WORLD_SIZE"] = "2"  # as under mpirun or horovodrun
fit(rows.batch(4))
del os.environ["OMPI_COMM_WORLD_SIZE"]
servers = {kind: [f"127.0.0.1:{free_port()}"] for kind in ("worker", "ps")}
cluster = tf.train.ClusterSpec(servers)
running = [tf.distribute.Server(cluster, kind, 0, protocol="grpc") for kind in servers]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
with contextlib.suppress(ValueError):  # Keras 3 has no `fit` under it, only loops of one's own
    fit(rows.batch(4), strategy=tf.distribute.ParameterServerStrategy(resolver))
seen = tf.Variable(0)
fit(rows.map(count).batch(4))
fit(Rows(workers=2, use_multiprocessing=True))
fit(Rows())
apart = threading.Thread(target=fit, args=(rows.batch(4),))
apart.start()
apart.join()
signal.signal(signal.SIGTERM, lambda *_: None)
fit(rows.batch(4))  # it sees to the signal itself
sys.stdout.flush()
os._exit(0)  # the servers of a cluster do not end by themselves
