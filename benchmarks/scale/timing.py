"""CPU time of a piece of work in this process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from statistics import median
from time import process_time

ROUNDS = 5


def timed(work: Callable[[], object], parts: int) -> float:
    """CPU milliseconds of one part: the median of some rounds, after one that warms up."""
    work()
    taken = list[float]()
    for _ in range(ROUNDS):
        gc.collect()
        began = process_time()
        work()
        taken.append(process_time() - began)
    return 1000 * median(taken) / parts
