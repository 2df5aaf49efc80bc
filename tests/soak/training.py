"""The NumPy example as a job of a soak: it sets its own pace, and saves and evaluates as slowly as its `env` says.

SIGTERM is answered between two steps only, so it waits for a slow save or evaluation. Where its `env` says so, its
state is on a "GPU" (`tests/fakes/cuda`), and stays there at a reshape if the product offers that. Takes the example's
options.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fakes" / "trainers"))

import digits
import held
import numpy_digits

from reshape_hooks import plain
from reshape_hooks.adapters import held_memory

STEP_S = 0.2  # on one GPU
SPEED_UP = 0.8  # on n GPUs it is n ** SPEED_UP times as fast
SAVE_S, EVALUATION_S, ON_GPU = "SOAK_SAVE_S", "SOAK_EVALUATION_S", "SOAK_ON_GPU"
BALLAST = 4_000_000  # numbers beside the weights, all of them the step


resume_from_files = numpy_digits._resume


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

    files = {"weights.npy": slowly, "velocity.npy": lambda path: np.save(path, network.velocity)}
    checkpoints.save(step, files, in_memory=on_gpu(network, step))
    checkpoints.prune()


def on_gpu(network: numpy_digits.Network, step: int) -> dict[str, bytes] | None:
    """Leave the state on the GPU, where that is offered and there is one."""
    folder = held_memory.offered() if os.environ.get(ON_GPU) == "yes" else None
    if folder is None:
        return None
    arrays = network.weights, network.velocity, np.full(BALLAST, step)
    return held.hand_over(folder, [held_memory.Piece(one.ctypes.data, one.nbytes) for one in arrays])


def resume(network: numpy_digits.Network, checkpoints: plain.Checkpoints, here: plain.Environment) -> int:
    """Load what the example or `on_gpu` has saved; return the steps done so far."""
    saved = checkpoints.newest(here.prefer)
    if saved is None or not (saved.path / plain.TENSORS).exists():
        return resume_from_files(network, checkpoints, here)
    (weights, velocity, ballast), place = held.loaded(saved.path)
    assert (np.frombuffer(ballast, np.int64) == saved.step).all(), "the state is that of its step, and whole"
    network.weights[:] = np.frombuffer(weights, network.weights.dtype)
    network.velocity[:] = np.frombuffer(velocity, network.velocity.dtype)
    plain.tell(f"state taken from {place}")
    return int(saved.step)


def main() -> int:
    numpy_digits._save, numpy_digits._resume = save, resume
    options, here = digits.options(__doc__ or ""), plain.environment()
    paced = here._replace(step_seconds=STEP_S / len(here.gpus) ** SPEED_UP)
    return numpy_digits.train(Slow(options.seed), digits.load(), options, paced)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except plain.CheckpointError as error:
        sys.exit(str(error))
