"""How long to train between two saves. Pure; seconds. Called by `saver`."""

from __future__ import annotations

import math


def interval_s(save_s: float, between_failures_s: float) -> float:
    """Return how long to train between two saves, so that saves and what failures undo take the least time together.

    This is Daly's estimate of a higher order. Where a save is short beside the time between failures, it is Young's:
    the root of 2 * save_s * between_failures_s. `save_s`: seconds for which the training stands still.
    """
    part = save_s / (2 * between_failures_s)
    if part >= 1:
        return between_failures_s
    return math.sqrt(2 * save_s * between_failures_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s
