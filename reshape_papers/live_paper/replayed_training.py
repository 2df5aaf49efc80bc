"""Replays the loss of a model: a script that works on a core as a training does, and prints what the model's printed.

So ten jobs of an experiment differ in their growth as ten models do, and need no framework. It saves and resumes by the
hooks, like examples/numpy_digits.py. Run as the command of a job by `trainings.replayed`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: a job's work is on one core
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from reshape_hooks import plain

# Together some milliseconds of CPU a step, so that its line costs next to nothing beside it.
SIZE = 256
PRODUCTS = 3


def train(iterations: int, losses: list[float], here: plain.Environment) -> int:
    """Work from the newest checkpoint to the last step; return the process's exit code."""
    checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
    saved = checkpoints.newest(here.prefer)
    stop = plain.StopFlag(here.announce)
    pace = plain.Pace(here.step_seconds)
    shares = np.linspace(0.0, 1.0, len(losses))
    matrix = np.random.default_rng(0).normal(0.0, 1.0 / SIZE, (SIZE, SIZE))
    pace.start()
    for done in range(saved.step if saved else 0, iterations):
        if stop.stopping:
            _save(checkpoints, done)
            return plain.STOPPED
        if stop.take_save():
            _save(checkpoints, done)
        for _ in range(PRODUCTS):
            matrix @ matrix
        pace.wait()
        loss = float(np.interp((done + 1) / iterations, shares, losses))
        plain.say(step=done + 1, total=iterations, loss=loss)
    _save(checkpoints, iterations)
    return 0


def _save(checkpoints: plain.Checkpoints, step: int) -> None:
    checkpoints.save(step, {"step": lambda path: Path(path).write_text(str(step))})
    checkpoints.prune()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", required=True, help="at equal shares of the work, from its beginning to its end")
    parser.add_argument("--iterations", type=int, required=True)
    given = parser.parse_args()
    return train(given.iterations, [float(loss) for loss in given.losses.split(",")], plain.environment())


if __name__ == "__main__":
    sys.exit(main())
