"""How much faster a job is on more GPUs, for traces that say only how long it took on those it had. Pure.

Strong scaling: the global batch is kept, so that the gain of a further GPU falls. Called by `trace.py`.
"""

from __future__ import annotations

import math

CURVE = "resnet50-256"
SOURCE = "ResNet-50 with a global batch of 256 on A100 (ElasticFlow, throughputs_A100/resnet50.csv)"
SPEED_UP = {1: 1.0, 2: 1.871, 4: 3.358, 8: 5.630, 16: 8.220, 32: 9.668, 64: 10.223}
"""By GPUs, relative to one."""


def speed_up(gpus: int) -> float:
    """On a line between the measured counts in log2; beyond the last no more. ValueError for less than one GPU."""
    if gpus < 1:
        raise ValueError(f"A job runs on at least 1 GPU, not {gpus}.")
    below = max(n for n in SPEED_UP if n <= gpus)
    above = min((n for n in SPEED_UP if n >= gpus), default=below)
    if above == below:
        return SPEED_UP[below]
    share = math.log2(gpus / below) / math.log2(above / below)
    return SPEED_UP[below] + share * (SPEED_UP[above] - SPEED_UP[below])
