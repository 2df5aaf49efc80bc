"""An ordinary script with a plain `model.fit` and no seeds; run by `test_keras_fit.py`."""

import hashlib
import sys
from pathlib import Path

import keras
import numpy as np

x = np.random.rand(1600, 16).astype("float32")
y = (x.sum(1) > 8).astype("float32")
if Path("other-data").exists():
    x = x[::-1]
test = np.random.permutation(len(x))[:200]
layers = [keras.layers.Dense(32, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1, "sigmoid")]
model = keras.Sequential(layers)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
sys.stdout.write("begins\n")
sys.stdout.flush()
history = model.fit(x, y, epochs=60, verbose=0)
after = model.evaluate(x[test], y[test], verbose=0)
digest = hashlib.md5(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
sys.stdout.write(f"{digest} {after} {history.history['loss']} {np.random.rand()}\n")
