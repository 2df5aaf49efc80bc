"""Makes the data of the zoo's trainings from a seed, and reads their options; NumPy only.

Digits are MNIST's where Keras has downloaded them (`~/.keras/datasets/mnist.npz`), else drawn in a font of 5 x 7
dots, shifted, with noise. All else is always made: sine waves, sequences of several lengths, sentences.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

MNIST = Path.home() / ".keras" / "datasets" / "mnist.npz"
SIDE, DOT = 28, 3  # pixels of an image and of a dot
FONT = (
    "0e11131519110e", "040c040404040e", "0e11010204081f", "1f02040201110e", "02060a121f0202",
    "1f101e0101110e", "0608101e11110e", "1f010204080808", "0e11110e11110e", "0e11110f01020c",
)  # fmt: skip
"""The digits 0 to 9: seven rows from the top in hexadecimal, one bit a dot."""

WAVE, LONGEST, LINE = 24, 24, 32  # values of a wave, most values of a sequence, characters of a line
LETTERS = " .abcdefghijklmnopqrstuvwxyz"
SENTENCE = (
    ("the", "a", "every", "no"),
    ("small", "large", "old", "young", "red", "quiet"),
    ("cat", "bird", "teacher", "river", "child", "painter"),
    ("sees", "follows", "finds", "paints", "forgets"),
    ("the house.", "a tree.", "the garden.", "an apple.", "the winter."),
)


EPOCHS = {
    "vae": 60, "gru": 60, "rnn": 60, "birnn": 20, "dynamic-rnn": 40, "lstm": 20,
    "lenet": 30, "resnet": 12, "inception": 12,
}  # fmt: skip


class Options(NamedTuple):
    """`samples`: of an epoch."""

    model: str
    epochs: int
    samples: int
    batch_size: int
    seed: int


def options(framework: str) -> Options:
    parser = argparse.ArgumentParser(description=f"Train a model of the zoo in {framework}.")
    parser.add_argument("model", choices=sorted(EPOCHS))
    parser.add_argument("--epochs", type=int, help="passes over the samples (default: about a minute on one core)")
    parser.add_argument("--samples", type=int, default=2048, help="samples of an epoch (default 2048)")
    parser.add_argument("--batch-size", type=int, default=32, help="samples of a batch (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="fixes data, first weights and order (default 0)")
    given = parser.parse_args()
    epochs = EPOCHS[given.model] if given.epochs is None else given.epochs
    if min(epochs, given.samples, given.batch_size) < 1 or given.seed < 0:
        parser.error("--epochs, --samples and --batch-size must be at least 1, --seed at least 0")
    return Options(given.model, epochs, given.samples, given.batch_size, given.seed)


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images (count, 28, 28) from 0 to 1 as float32, and their digits as int64."""
    rng = np.random.default_rng((seed, 0))
    if MNIST.is_file():
        with np.load(MNIST) as mnist:
            rows = rng.permutation(len(mnist["x_train"]))[:count]
            return mnist["x_train"][rows].astype(np.float32) / 255, mnist["y_train"][rows].astype(np.int64)
    y = rng.integers(0, 10, count)
    images = _drawn()[y]
    for image, shift in zip(images, rng.integers(-3, 4, (count, 2)), strict=True):
        image[:] = np.roll(image, tuple(shift), (0, 1))
    images *= rng.uniform(0.4, 1.0, (count, 1, 1))
    return np.clip(images + rng.normal(0, 0.25, images.shape), 0, 1).astype(np.float32), y


def _drawn() -> np.ndarray:
    """Return the ten digits in the middle of ten images."""
    rows = np.array([list(bytes.fromhex(digit)) for digit in FONT], np.uint8)
    dots = np.unpackbits(rows[..., None], axis=-1)[..., 3:]
    big = np.kron(dots, np.ones((1, DOT, DOT)))
    up, left = (SIDE - big.shape[1]) // 2, (SIDE - big.shape[2]) // 2
    return np.pad(big, ((0, 0), (up, SIDE - up - big.shape[1]), (left, SIDE - left - big.shape[2])))


def waves(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pieces (count, 24, 1) of sums of two sine waves as float32, and the next value (count, 1) of each."""
    rng = np.random.default_rng((seed, 1))
    speed, phase = rng.uniform(0.1, 0.8, (count, 2, 1)), rng.uniform(0, 2 * np.pi, (count, 2, 1))
    wave = np.sin(speed * np.arange(WAVE + 1) + phase).mean(1)
    seen = wave[:, :-1] + rng.normal(0, 0.02, (count, WAVE))
    return seen[..., None].astype(np.float32), wave[:, -1:].astype(np.float32)


def sequences(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values (count, 24, 1) from 0 to 1 as float32, of which the first `lengths` count and the rest is -1;
    `lengths`; and 1 for each that rises evenly, 0 for each in random order."""
    rng = np.random.default_rng((seed, 2))
    lengths, rises = rng.integers(4, LONGEST + 1, count), rng.integers(0, 2, count)
    x = np.full((count, LONGEST, 1), -1, np.float32)
    for values, length, even in zip(x, lengths, rises, strict=True):
        line = rng.uniform(0, 0.3) + rng.uniform(0.01, 0.03) * np.arange(length)
        values[:length, 0] = line if even else rng.permutation(line)
    return x, lengths, rises


def text(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return lines (count, 32) of a made-up text, each character by its number in LETTERS, and the lines one on."""
    rng = np.random.default_rng((seed, 3))
    sentences = count * LINE // 20
    drawn = [rng.integers(0, len(words), sentences) for words in SENTENCE]
    written = " ".join(words[k] for row in zip(*drawn, strict=True) for words, k in zip(SENTENCE, row, strict=True))
    numbers = np.array([LETTERS.index(letter) for letter in written])
    starts = rng.integers(0, len(numbers) - LINE, count)[:, None] + np.arange(LINE)
    return numbers[starts], numbers[starts + 1]
