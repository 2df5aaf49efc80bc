"""Runs the three tasks of the Slaml paper's MNIST job: `mnist.py prepare`, `extract`, `train`. NumPy only.

The tasks exchange files in the folder DATA (/data). The input is `mnist.npz` there, as Keras ships MNIST, if it exists,
else the 1,797 digits of scikit-learn. The environment names the replica and its parameters: RESHAPE_JOB_ID ends with
the replica's number; BATCH_SIZE, EPOCHS and LR are its modelParams.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: matrices this small lose by threads

import numpy as np

from reshape_hooks import plain

DATA = Path(os.environ.get("DATA", "/data"))
PARTS = 3  # replicas of the second task; each extracts its part of the features
ADAM = (0.9, 0.999, 1e-8)


def prepare() -> int:
    """Write pixels from 0 to 1 and labels to one file."""
    given = DATA / "mnist.npz"
    if given.exists():
        with np.load(given) as data:
            x, y = np.concatenate([data["x_train"], data["x_test"]]), np.concatenate([data["y_train"], data["y_test"]])
        x = x.reshape(len(x), -1).astype(np.float32) / 255
    else:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x = x.astype(np.float32) / 16
    _write("prepared.npz", x=x, y=y.astype(np.int64))
    plain.tell(f"{len(x)} digits of {x.shape[1]} pixels from {given if given.exists() else 'scikit-learn'}")
    return 0


def extract() -> int:
    """Write one of three feature sets: pixels, their differences to the right, their differences downwards."""
    part = int(_of_this_replica()) % PARTS
    with np.load(DATA / "prepared.npz") as data:
        x = data["x"]
    images = x.reshape(len(x), round(x.shape[1] ** 0.5), -1)
    made = [images, np.diff(images, axis=2), np.diff(images, axis=1)][part]
    _write(f"features-{part}.npz", x=made.reshape(len(x), -1))
    plain.tell(f"part {part}: {made[0].size} features of {len(x)} digits")
    return 0


class Softmax:
    """One layer with ten classes, trained by Adam."""

    def __init__(self, inputs: int) -> None:
        self.weights = np.zeros((inputs + 1, 10), np.float32)
        self.first, self.second = np.zeros_like(self.weights), np.zeros_like(self.weights)

    def shares(self, x: np.ndarray) -> np.ndarray:
        scores = x @ self.weights[:-1] + self.weights[-1]
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def step(self, number: int, x: np.ndarray, y: np.ndarray, rate: float) -> float:
        """Train one step; return the loss before it."""
        error = shares = self.shares(x)
        loss = -np.log(np.maximum(shares[np.arange(len(y)), y], 1e-12)).mean()
        error[np.arange(len(y)), y] -= 1
        gradient = np.vstack([x.T @ error, error.sum(axis=0)]) / np.float32(len(y))
        a, b, tiny = ADAM
        self.first = a * self.first + (1 - a) * gradient
        self.second = b * self.second + (1 - b) * gradient**2
        self.weights -= rate * (self.first / (1 - a**number)) / (np.sqrt(self.second / (1 - b**number)) + tiny)
        return float(loss)


def train() -> int:
    """Train with this replica's parameters; save on SIGTERM, and resume from there when started again."""
    batch, epochs, rate = (float(os.environ[name]) for name in ("BATCH_SIZE", "EPOCHS", "LR"))
    x, y = _features()
    tenth = len(y) // 10
    test_x, test_y, x, y = x[:tenth], y[:tenth], x[tenth:], y[tenth:]
    here = plain.environment()
    flag, kept, model = plain.StopFlag(here.announce), _checkpoints(here), Softmax(x.shape[1])
    per_epoch = -(-len(y) // int(batch))
    total, done = per_epoch * int(epochs), _begin(kept, here.prefer, model)
    pace = plain.Pace(here.step_seconds)
    for number in range(done + 1, total + 1):
        pace.wait()
        epoch, place = divmod(number - 1, per_epoch)
        rows = np.random.default_rng(epoch).permutation(len(y))[place * int(batch) : (place + 1) * int(batch)]
        loss = model.step(number, x[rows], y[rows], rate)
        if number % per_epoch == 0:
            right = float((model.shares(test_x).argmax(axis=1) == test_y).mean())
            plain.say(step=number, total=total, epoch=epoch + 1, loss=round(loss, 4), val_accuracy=round(right, 4))
        if flag.stopping and number < total:
            _save(kept, number, model)
            return plain.STOPPED
    _save(kept, total, model)
    return 0


def _features() -> tuple[np.ndarray, np.ndarray]:
    with np.load(DATA / "prepared.npz") as data:
        y = data["y"]
    parts = []
    for part in range(PARTS):
        with np.load(DATA / f"features-{part}.npz") as data:
            parts.append(data["x"])
    return np.concatenate(parts, axis=1), y


def _checkpoints(here: plain.Environment) -> plain.Checkpoints:
    return plain.Checkpoints(here.checkpoints, here.job_id, here.generation)


def _save(kept: plain.Checkpoints, step: int, model: Softmax) -> None:
    state = np.stack([model.weights, model.first, model.second]).astype(np.float32).tobytes()
    kept.save(step, {"state.f32": state})
    kept.prune()


def _begin(kept: plain.Checkpoints, prefer: str | None, model: Softmax) -> int:
    """Load the newest checkpoint; return the steps done so far."""
    saved = kept.newest(prefer)
    if saved is None:
        return 0
    state = np.frombuffer((saved.path / "state.f32").read_bytes(), np.float32).reshape(3, *model.weights.shape)
    model.weights, model.first, model.second = (part.copy() for part in state)
    return saved.step


def _of_this_replica() -> str:
    """Return the replica's number, the end of its job's name."""
    return os.environ.get("RESHAPE_JOB_ID", "0").rpartition(".")[2]


def _write(name: str, **arrays: np.ndarray) -> None:
    """Write the file completely or not at all: a stopped task repeats it."""
    DATA.mkdir(parents=True, exist_ok=True)
    part = DATA / f".{name}"
    with part.open("wb") as file:
        np.savez(file, **arrays)
    part.replace(DATA / name)


if __name__ == "__main__":
    os.umask(0o22)
    tasks = {"prepare": prepare, "extract": extract, "train": train}
    if sys.argv[1:2] == [] or sys.argv[1] not in tasks:
        sys.exit(f"say what to do: {', '.join(tasks)}")
    try:
        sys.exit(tasks[sys.argv[1]]())
    except (plain.CheckpointError, FileNotFoundError) as error:
        sys.exit(str(error))
