"""Computes how long to train between two saves. Pure; seconds. Called by `saver`."""

from __future__ import annotations

import math


def interval_s(save_s: float, between_failures_s: float) -> float:
    """Return how long to train between two saves, so that saves and work lost to failures together take the least time.

    This is Daly's higher-order estimate. If a save is short compared to the time between failures, it is Young's:
    sqrt(2 * save_s * between_failures_s). `save_s`: seconds for which a save stalls the training.
    """
    part = save_s / (2 * between_failures_s)
    if part >= 1:
        return between_failures_s
    return math.sqrt(2 * save_s * between_failures_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s
