"""Models the loss curves of the jobs that SpeCon and FlowCon trained, as far as their papers describe them.

Promises curves that start and end at the stated values and have completed the stated share of their decrease after a
fifth of the work (`algorithms.md` 5.6). Called by the workloads. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.scenario import Curve


def falling(first: float, last: float, fallen: float) -> Curve:
    """Return the loss by share of work done, from `first` to `last`, with the share `fallen` of its fall after a fifth.

    E(x) = a exp(-x/b) + c (5.6). Raises ValueError unless 0.2 < fallen < 1.
    """
    if not 0.2 < fallen < 1:
        raise ValueError(f"The share fallen after a fifth of the work must lie between 0.2 and 1, not {fallen!r}.")
    u = _fifth(fallen)
    steep, end = 5 * math.log(u), u**5  # E goes with u^(5x), which is 1 at first and u^5 at last
    return lambda x: last + (first - last) * (math.exp(steep * x) - end) / (1 - end)


def _fifth(fallen: float) -> float:
    """Return u with (1 - u) / (1 - u^5) = fallen, by bisection: the left side falls as u grows."""
    low, high = 0.0, 1.0
    for _ in range(60):
        u = (low + high) / 2
        if 1 / (1 + u + u**2 + u**3 + u**4) > fallen:
            low = u
        else:
            high = u
    return (low + high) / 2


HEAD = 0.02
"""Share of the work in which the steep beginning of a loss falls to 1/e; fitted (3.5, F4): with it VAE grows at
40 s, after 8 to 15 % of its work, at 0.08 of its first rate. The paper's 0.25 of the node for VAE needs at most
a third, which no curve of `falling` has whose fall after a fifth is VAE's 0.65."""


def head_and_tail(first: float, last: float, fallen: float) -> Curve:
    """Return a curve that falls linearly after a steep beginning: E(x) = a exp(-x/HEAD) + c - d x."""
    if not 0.2 < fallen < 1:
        raise ValueError(f"The share fallen after a fifth of the work must lie between 0.2 and 1, not {fallen!r}.")
    head, full = (fallen - 0.2) / 0.8, -math.expm1(-1 / HEAD)
    return lambda x: first - (first - last) * (head * -math.expm1(-x / HEAD) / full + (1 - head) * x)


@dataclass(frozen=True, slots=True)
class LossModel:
    """Loss before and after training, and the share of the fall after a fifth of the work.

    `sourced`: the papers state that share; else it is invented. `first` and `last` are always invented, on scales so
    different that raw growth cannot be compared (F1, S1).
    """

    first: float
    last: float
    fallen: float
    sourced: bool = False


MODELS: Mapping[str, LossModel] = {
    "VAE": LossModel(550.0, 100.0, 0.65, sourced=True),  # reconstruction loss
    "GRU": LossModel(1.0, 0.02, 0.90, sourced=True),  # quadratic loss
    "Bi-RNN": LossModel(2.3, 0.1, 0.98, sourced=True),  # softmax
    "RNN": LossModel(2.3, 0.15, 0.95),
    "Dynamic RNN": LossModel(0.7, 0.05, 0.90),
    "MNIST": LossModel(2.3, 0.05, 0.30),  # cross entropy
    "LSTM-CFC": LossModel(5.0, 1.0, 0.30),  # softmax
    "LSTM-CRF": LossModel(40.0, 2.0, 0.30),  # squared loss
}
"""SpeCon: after 20 % of its solo time VAE, Bi-RNN and GRU have 65, 98 and 90 % of their fall. MNIST's is
fitted (`workloads/flowcon_workloads.py`), the LSTMs' taken to be the same."""

SOURCED = "the fall of VAE, Bi-RNN and GRU after a fifth of their work (65, 98 and 90 %, SpeCon)"
INVENTED = "all other loss curves, and the scale of every loss"
