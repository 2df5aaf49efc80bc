"""The NumPy example as a job of a soak: it sets its own pace, and saves and evaluates as slowly as its `env` says.

SIGTERM is answered between two steps only, so it waits for a slow save or evaluation. Takes the example's options.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import digits
import numpy_digits

from reshape_hooks import plain

STEP_S = 0.2  # on one GPU
SPEED_UP = 0.8  # on n GPUs it is n ** SPEED_UP times as fast
SAVE_S, EVALUATION_S = "SOAK_SAVE_S", "SOAK_EVALUATION_S"


class Slow(numpy_digits.Network):
    """Evaluates slowly."""

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        time.sleep(float(os.environ.get(EVALUATION_S, "0")))
        return super().accuracy(x, y)


def save(network: numpy_digits.Network, checkpoints: plain.Checkpoints, step: int) -> None:
    """Save what the example saves, the first half of it slowly."""

    def slowly(path: str) -> None:
        time.sleep(float(os.environ.get(SAVE_S, "0")))
        np.save(path, network.weights)

    checkpoints.save(step, {"weights.npy": slowly, "velocity.npy": lambda path: np.save(path, network.velocity)})
    checkpoints.prune()


def main() -> int:
    numpy_digits._save = save
    options, here = digits.options(__doc__ or ""), plain.environment()
    paced = here._replace(step_seconds=STEP_S / len(here.gpus) ** SPEED_UP)
    return numpy_digits.train(Slow(options.seed), digits.load(), options, paced)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except plain.CheckpointError as error:
        sys.exit(str(error))
