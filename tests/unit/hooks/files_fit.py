"""A plain `model.fit` that writes its results in several ways, as a script of its own; see `test_files_of_fits.py`."""

import csv
import json
import logging
import os
import shutil
import signal
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np

keras.utils.set_random_seed(1)
if os.path.exists("out"):
    shutil.rmtree("out")
os.makedirs("out/plots")
logging.basicConfig(filename="out/log.txt", filemode="w", level="INFO", format="%(message)s", force=True)
logging.info("begins")


class Rows(keras.callbacks.Callback):
    """As people write them: a table that is opened once, a list that is written whole, a line for each validation."""

    def __init__(self):
        super().__init__()
        self.rows = []
        self.noise, self.mean = keras.random.SeedGenerator(3), [keras.Variable(0.0)]

    def on_train_begin(self, logs=None):
        self.file = open("out/batches.csv", "w", newline="")
        self.table = csv.writer(self.file)
        self.table.writerow(["batch", "loss"])

    def on_train_batch_end(self, batch, logs=None):
        self.table.writerow([batch, f"{logs['loss']:.6f}"])
        if [self.epoch, batch] == json.loads(os.environ.get("KILL") or "null"):
            self.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if [self.epoch, batch] == json.loads(os.environ.get("STOP") or "null"):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_test_begin(self, logs=None):
        with open("out/validations.txt", "a") as file:
            file.write(f"validation of epoch {self.epoch}\n")

    def on_test_batch_end(self, batch, logs=None):
        if [self.epoch, batch, "validation"] == json.loads(os.environ.get("STOP") or "null"):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_end(self, epoch, logs=None):
        logging.info("epoch %s loss %.6f", epoch, logs["loss"])
        self.mean[0].assign(0.5 * self.mean[0] + logs["loss"])
        drawn = float(keras.random.uniform((), seed=self.noise))
        row = {"epoch": epoch, "loss": round(logs["loss"], 6), "mean": float(self.mean[0]), "drawn": drawn}
        self.rows.append(row)
        with open("out/history.json", "w") as file:
            json.dump(self.rows, file)
        with open(f"out/plots/{epoch}.txt", "x") as file:
            file.write("a plot")

    def on_train_end(self, logs=None):
        self.file.close()


x = np.random.rand(40, 4).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, 8, epochs=4, verbose=0, validation_data=(x, y), validation_batch_size=8, callbacks=[Rows()])
logging.info("ends")
sys.stdout.write("ended\n")
