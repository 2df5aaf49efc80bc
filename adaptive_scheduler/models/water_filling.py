"""How jobs trained on CPU share the cores of a node: water-filling (`algorithms.md` 5.6). Pure.

Called by the prediction of moves, by FlowCon's limits and by the simulator's CPU nodes, which must agree on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def water_fill(capacity: float, caps: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """What each gets, in the unit of `capacity`: all rise until each has its cap or nothing is left.

    Each cap is the smaller of what a job can use and what it is limited to; `inf` is one. All rise alike, or in
    proportion to `weights` (above 0).
    """
    shares = [0.0] * len(caps)
    weighs = [1.0] * len(caps) if weights is None else weights
    left, weight = capacity, math.fsum(weighs)
    for i in sorted(range(len(caps)), key=lambda i: (caps[i] / weighs[i], i)):
        shares[i] = min(caps[i], left * weighs[i] / max(weight, weighs[i]))
        left -= shares[i]
        weight -= weighs[i]
    return shares
