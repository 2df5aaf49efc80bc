"""Trains a small Keras network on digits: an ordinary script that knows nothing of volcano-reshape.

Run by hand, or as a job, which is resized while it trains: `reshape submit -- python keras_plain.py`.
"""

import argparse

import digits
import keras

parser = argparse.ArgumentParser(description="Train digits with Keras.")
parser.add_argument("--epochs", type=int, default=20, help="passes over the training digits (default 20)")
epochs = parser.parse_args().epochs

data = digits.load()
model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(data.train_x, data.train_y, batch_size=32, epochs=epochs)
loss, accuracy = model.evaluate(data.test_x, data.test_y, verbose=0)
print(f"validation: loss {loss:.4f}, accuracy {accuracy:.4f}")
