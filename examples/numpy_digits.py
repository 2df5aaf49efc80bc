"""Trains a small network on digits in plain NumPy: a complete elastic training script.

Run by hand or as a job; see README.md beside it. Interrupted at any step and resumed, it ends with
the same weights, bit for bit, as a run that was never interrupted.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: matrices this small lose by threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hashlib

import digits
import numpy as np
from digits import Digits, Options

from reshape_hooks import plain
from reshape_hooks.locks import GpuLocks

HIDDEN = 64
LEARNING_RATE = np.float32(0.05)
MOMENTUM = np.float32(0.9)


class Network:
    """64 pixels, 64 hidden units, 10 classes; momentum SGD. All weights lie in one vector."""

    def __init__(self, seed: int) -> None:
        shapes = [(64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
        sizes = [int(np.prod(shape)) for shape in shapes]
        ends = np.cumsum(sizes)
        self.weights = np.zeros(ends[-1], np.float32)
        self.gradient = np.zeros_like(self.weights)
        self.velocity = np.zeros_like(self.weights)
        self.w1, self.b1, self.w2, self.b2 = _views(self.weights, shapes, ends)
        self.d_w1, self.d_b1, self.d_w2, self.d_b2 = _views(self.gradient, shapes, ends)
        random = np.random.default_rng(seed)
        self.w1[:] = random.normal(0, np.sqrt(2 / 64), self.w1.shape)
        self.w2[:] = random.normal(0, np.sqrt(2 / HIDDEN), self.w2.shape)

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return hidden activations and class probabilities."""
        hidden = np.maximum(x @ self.w1 + self.b1, 0)
        scores = hidden @ self.w2 + self.b2
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return the share of rows whose digit is predicted correctly."""
        return float((self.forward(x)[1].argmax(axis=1) == y).mean())

    def train(self, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        """Train one step on one batch; return the batch's mean loss and accuracy before it."""
        hidden, shares = self.forward(x)
        rows = np.arange(len(y))
        loss = -np.log(np.maximum(shares[rows, y], 1e-12)).mean()
        accuracy = (shares.argmax(axis=1) == y).mean()
        shares[rows, y] -= 1
        shares /= len(y)
        back = (shares @ self.w2.T) * (hidden > 0)
        self.d_w2[:], self.d_b2[:] = hidden.T @ shares, shares.sum(axis=0)
        self.d_w1[:], self.d_b1[:] = x.T @ back, back.sum(axis=0)
        self.velocity *= MOMENTUM
        self.velocity -= LEARNING_RATE * self.gradient
        self.weights += self.velocity
        return float(loss), float(accuracy)


def _views(vector: np.ndarray, shapes: list[tuple[int, ...]], ends: np.ndarray) -> list[np.ndarray]:
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]


def train(network: Network, data: Digits, options: Options, here: plain.Environment) -> int:
    """Train from the newest checkpoint to the last step; return the process's exit code."""
    checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
    locks = GpuLocks(here)
    first = _resume(network, checkpoints, here)
    stop = plain.StopFlag(here.announce)
    pace = plain.Pace(here.step_seconds)
    labels = {"emulated": "yes"} if here.emulated else {}
    pace.start()
    for done in range(first, options.total):
        if stop.stopping:
            _save(network, checkpoints, done)
            return plain.STOPPED
        if stop.take_save() or (options.save_every and done > first and done % options.save_every == 0):
            _save(network, checkpoints, done)
        rows = digits.batch(done, options)
        loss, accuracy = network.train(data.train_x[rows], data.train_y[rows])
        pace.wait()
        locks.used(done + 1)
        epoch = done // options.steps_per_epoch
        plain.say(step=done + 1, total=options.total, epoch=epoch, loss=loss, accuracy=accuracy, **labels)
        if options.evaluate_every and (done + 1) % options.evaluate_every == 0:
            plain.say(val_accuracy=network.accuracy(data.test_x, data.test_y))
    _save(network, checkpoints, options.total)
    return 0


def _resume(network: Network, checkpoints: plain.Checkpoints, here: plain.Environment) -> int:
    """Load the newest good checkpoint; return the steps done so far."""
    saved = checkpoints.newest(here.prefer)
    step = saved.step if saved else 0
    plain.say(job=here.job_id, gpus=len(here.gpus), begins_at=step, emulated="yes" if here.emulated else "no")
    if saved is None:
        return 0
    network.weights[:] = np.load(saved.path / "weights.npy")
    network.velocity[:] = np.load(saved.path / "velocity.npy")
    return saved.step


def _save(network: Network, checkpoints: plain.Checkpoints, step: int) -> None:
    checkpoints.save(
        step,
        {
            "weights.npy": lambda path: np.save(path, network.weights),
            "velocity.npy": lambda path: np.save(path, network.velocity),
        },
    )
    checkpoints.prune()


def main() -> int:
    options = digits.options("Train digits in NumPy. SIGTERM: save and exit with code 143.")
    data = digits.load()
    network = Network(options.seed)
    code = train(network, data, options, plain.environment())
    if code == 0:
        weights = hashlib.sha256(network.weights.tobytes()).hexdigest()
        plain.say(finished="yes", val_accuracy=network.accuracy(data.test_x, data.test_y), weights=weights)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except plain.CheckpointError as error:
        sys.exit(str(error))
