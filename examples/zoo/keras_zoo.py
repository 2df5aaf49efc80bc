"""Trains a small model in Keras: an ordinary script that knows nothing of volcano-reshape.

The models are those that SpeCon and FlowCon trained, with the digits of MNIST: `python keras_zoo.py vae`. See README.md
beside it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import zoo_data

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
for threads in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # models this small lose by threads

try:
    import keras
    from keras import layers
except ImportError as error:
    sys.exit(f"Keras is not installed ({error}): pip install tensorflow, or use torch_zoo.py")

IMAGE, LETTERS = (zoo_data.SIDE, zoo_data.SIDE), len(zoo_data.LETTERS)
Made = tuple[keras.Model, Any, Any]
"""A compiled model, its inputs, and what it shall return for them."""


class Draw(layers.Layer):
    """Draws from the normal distribution of a mean and a logarithm of variance, whose divergence from N(0, 1) it adds
    to the loss."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = keras.random.SeedGenerator(seed)

    def call(self, moments: tuple[Any, Any]) -> Any:
        mean, log_var = moments
        self.add_loss(-0.5 * keras.ops.mean(keras.ops.sum(1 + log_var - mean**2 - keras.ops.exp(log_var), -1)))
        return mean + keras.ops.exp(0.5 * log_var) * keras.random.normal(keras.ops.shape(mean), seed=self.random)


def vae(samples: int, seed: int) -> Made:
    """A variational autoencoder; its loss is that of the reconstruction, summed over pixels, and the divergence."""
    x = zoo_data.digits(samples, seed)[0].reshape(samples, -1)
    pixels = keras.Input((x.shape[1],))
    hidden = layers.Dense(256, activation="relu")(pixels)
    z = Draw(seed)((layers.Dense(8)(hidden), layers.Dense(8)(hidden)))
    again = layers.Dense(x.shape[1], activation="sigmoid")(layers.Dense(256, activation="relu")(z))
    model = keras.Model(pixels, again)
    model.compile("adam", lambda y, p: x.shape[1] * keras.losses.binary_crossentropy(y, p))
    return model, x, x


def gru(samples: int, seed: int) -> Made:
    """Predicts the next value of a sine wave; its loss is quadratic."""
    x, y = zoo_data.waves(samples, seed)
    model = keras.Sequential([keras.Input(x.shape[1:]), layers.GRU(32), layers.Dense(1)])
    model.compile("adam", "mean_squared_error")
    return model, x, y


def rnn(samples: int, seed: int) -> Made:
    """Reads a digit row by row."""
    return _of_rows(layers.SimpleRNN(64), samples, seed)


def birnn(samples: int, seed: int) -> Made:
    """Reads a digit from above and from below."""
    return _of_rows(layers.Bidirectional(layers.LSTM(48)), samples, seed)


def _of_rows(layer: layers.Layer, samples: int, seed: int) -> Made:
    return _classifier([keras.Input(IMAGE), layer], samples, seed)


def _classifier(body: list[Any], samples: int, seed: int) -> Made:
    return _of_digits(keras.Sequential([*body, layers.Dense(10, activation="softmax")]), samples, seed)


def _of_digits(model: keras.Model, samples: int, seed: int) -> Made:
    x, y = zoo_data.digits(samples, seed)
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, x, y


def dynamic_rnn(samples: int, seed: int) -> Made:
    """Tells sequences of several lengths that rise from those in random order."""
    x, _, y = zoo_data.sequences(samples, seed)
    model = keras.Sequential(
        [keras.Input(x.shape[1:]), layers.Masking(-1.0), layers.LSTM(32), layers.Dense(1, activation="sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model, x, y


def lstm(samples: int, seed: int) -> Made:
    """Predicts the next character of a text."""
    x, y = zoo_data.text(samples, seed)
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            layers.Embedding(LETTERS, 16),
            layers.LSTM(64, return_sequences=True),
            layers.Dense(LETTERS, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, x, y


def lenet(samples: int, seed: int) -> Made:
    """LeNet-5, a convolutional network."""
    body = [
        keras.Input((*IMAGE, 1)),
        layers.Conv2D(6, 5, padding="same", activation="tanh"),
        layers.AveragePooling2D(2),
        layers.Conv2D(16, 5, activation="tanh"),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(120, activation="tanh"),
        layers.Dense(84, activation="tanh"),
    ]
    return _classifier(body, samples, seed)


def resnet(samples: int, seed: int) -> Made:
    """A residual network of three stages with one block each."""
    image = keras.Input((*IMAGE, 1))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(image)))
    for width, stride in ((8, 1), (16, 2), (32, 2)):
        past = layers.Conv2D(width, 1, stride)(x)
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, stride, "same")(x)))
        x = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x))
        x = layers.ReLU()(x + past)
    return _of_image(image, x, samples, seed)


def inception(samples: int, seed: int) -> Made:
    """Two Inception blocks: convolutions of 1, 3 and 5 pixels and a pooling beside each other."""
    image = keras.Input((*IMAGE, 1))
    x = layers.MaxPooling2D(2)(layers.Conv2D(8, 3, padding="same", activation="relu")(image))
    for width in (8, 16):
        small = [layers.Conv2D(width // 2, 1, activation="relu")(x) for _ in range(2)]
        pooled = layers.MaxPooling2D(3, 1, "same")(x)
        beside = [
            layers.Conv2D(width, 1, activation="relu")(x),
            layers.Conv2D(width, 3, padding="same", activation="relu")(small[0]),
            layers.Conv2D(width, 5, padding="same", activation="relu")(small[1]),
            layers.Conv2D(width, 1, activation="relu")(pooled),
        ]
        x = layers.MaxPooling2D(2)(layers.Concatenate()(beside))
    return _of_image(image, layers.Dropout(0.2)(x), samples, seed)


def _of_image(image: Any, features: Any, samples: int, seed: int) -> Made:
    scores = layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(features))
    return _of_digits(keras.Model(image, scores), samples, seed)


MODELS: dict[str, Callable[[int, int], Made]] = {
    "vae": vae, "gru": gru, "rnn": rnn, "birnn": birnn, "dynamic-rnn": dynamic_rnn, "lstm": lstm,
    "lenet": lenet, "resnet": resnet, "inception": inception,
}  # fmt: skip

if __name__ == "__main__":
    given = zoo_data.options("Keras")
    keras.utils.set_random_seed(given.seed)
    model, x, y = MODELS[given.model](given.samples, given.seed)
    model.fit(x, y, batch_size=given.batch_size, epochs=given.epochs)
