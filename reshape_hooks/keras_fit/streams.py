"""Reads and sets the random streams of a process: Python's, NumPy's and the one that TensorFlow draws seeds from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from tensorflow.python.eager import context


def read() -> Any:
    """Return the state of all streams, which can be pickled."""
    seeds = getattr(context.context(), "_rng", None)
    return random.getstate(), np.random.get_state(), seeds.getstate() if seeds is not None else None


def write(state: Any) -> None:
    """Set all streams to what `read` returned."""
    of_random, of_numpy, of_seeds = state
    random.setstate(of_random)
    np.random.set_state(of_numpy)
    seeds = getattr(context.context(), "_rng", None)
    if seeds is not None and of_seeds is not None:
        seeds.setstate(of_seeds)
