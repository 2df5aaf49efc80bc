"""Loads the data and the options that all example trainings share.

1,797 handwritten digits of 8 x 8 pixels, from the file that scikit-learn ships. It is read without
importing scikit-learn, which would take a second at each start.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np

TRAINING_ROWS = 1500


class Digits(NamedTuple):
    """Pixels from 0 to 1 as float32, labels from 0 to 9; the last 297 rows are kept for validation."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load() -> Digits:
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise SystemExit("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    packed = Path(found.origin).with_name("datasets") / "data" / "digits.csv.gz"
    text = gzip.decompress(packed.read_bytes()).decode().replace("\n", ",").rstrip(",")
    # All are small whole numbers: read as such it takes 3 ms instead of 50, at each start.
    rows = np.fromstring(text, sep=",", dtype=np.uint8).astype(np.float32).reshape(-1, 65)
    x, y = rows[:, :64] / np.float32(16), rows[:, 64].astype(np.int64)
    n = TRAINING_ROWS
    return Digits(x[:n], y[:n], x[n:], y[n:])


class Options(NamedTuple):
    """The options of a training; `total` counts iterations, one batch each."""

    total: int
    batch_size: int
    seed: int
    save_every: int
    evaluate_every: int

    @property
    def steps_per_epoch(self) -> int:
        return TRAINING_ROWS // self.batch_size


def batch(step: int, options: Options) -> np.ndarray:
    """Return the rows of this step; their order depends on seed and epoch only, so that a resumed run repeats it."""
    epoch, number = divmod(step, options.steps_per_epoch)
    order = np.random.default_rng((options.seed, epoch)).permutation(TRAINING_ROWS)
    return order[number * options.batch_size :][: options.batch_size]


def options(description: str) -> Options:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training digits (default 20)")
    parser.add_argument("--iterations", type=int, help="batches to train in all, instead of --epochs")
    parser.add_argument("--batch-size", type=int, default=32, help="digits in a batch (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="fixes first weights and order (default 0)")
    parser.add_argument(
        "--save-every", type=int, default=200, help="iterations from one checkpoint to the next; 0: none"
    )
    parser.add_argument(
        "--evaluate-every", type=int, default=0, help="iterations from one validation to the next; 0: at the end only"
    )
    given = parser.parse_args()
    if not 1 <= given.batch_size <= TRAINING_ROWS:
        parser.error(f"--batch-size must be from 1 to {TRAINING_ROWS}")
    if min(given.epochs, given.iterations if given.iterations is not None else 1) < 1 or given.seed < 0:
        parser.error("--epochs and --iterations must be at least 1, --seed at least 0")
    whole = given.epochs * (TRAINING_ROWS // given.batch_size)
    saves, looks = max(0, given.save_every), max(0, given.evaluate_every)
    return Options(given.iterations or whole, given.batch_size, given.seed, saves, looks)
