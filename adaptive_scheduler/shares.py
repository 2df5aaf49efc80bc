"""How jobs trained on CPU share the cores of a node: water-filling (`algorithms.md` 5.6). Pure.

Called by the prediction of moves and by the simulator's CPU nodes, which must agree on it.
"""

from __future__ import annotations

from collections.abc import Sequence


def water_fill(capacity: float, caps: Sequence[float]) -> list[float]:
    """What each gets, in the unit of `capacity`: all rise alike until each has its cap or nothing is left.

    Each cap is the smaller of what a job can use and what it is limited to; `inf` is one.
    """
    shares = [0.0] * len(caps)
    left = capacity
    order = sorted(range(len(caps)), key=lambda i: (caps[i], i))
    for done, i in enumerate(order):
        shares[i] = min(caps[i], left / (len(order) - done))
        left -= shares[i]
    return shares
