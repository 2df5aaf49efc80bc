"""Provides the speeds by number of GPUs that the SideCar paper prints, and a rule for those that it does not.

Its Figure 2 has ResNet-18 and -34 in several batch sizes, but no numbers; the text prints three for "a ResNet model"
(section I) and says that more GPUs "can even slow down model training" (II-B). W1 to W4 run on `speed_up`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

PRINTED: Mapping[int, float] = {1: 1.0, 2: 1.7, 4: 2.4}
"""How many times as fast as on one GPU (section I)."""

TABLE_IV: Mapping[str, Mapping[int, float]] = {
    "1080Ti": {1: 0.31, 2: 0.23},
    "P100": {1: 0.25, 2: 0.19},
    "V100": {1: 0.18, 2: 0.14},
}
"""The paper's example of a speed profile: seconds of an iteration of type 0 by GPU type and number of GPUs."""

PRINTED_BATCH = 256
"""The batch that `PRINTED` is taken to be of, as the paper does not say. Of the three batches of Job Set One it is the
one with which `by_law` says of type 0, a batch of 64, what Table IV prints on two GPUs."""

RULE = (
    "on 2 and 4 GPUs 1.7 and 2.4 times as fast as on one (Figure 2); on 8, which is not printed, as much faster or "
    "slower than on 4 as the universal scalability law through these points says of the batch"
)


def speed_up(num_gpus: int, batch: int) -> float:
    """Return the speed-up over one GPU of a job with that batch: as printed, beyond that by the law.

    Of the law only the step from 4 GPUs is used, so that all types have the printed 2.4 there.
    """
    if num_gpus in PRINTED:
        return PRINTED[num_gpus]
    most = max(PRINTED)
    return PRINTED[most] * by_law(num_gpus, batch) / by_law(most, batch)


def by_law(num_gpus: int, batch: int) -> float:
    """Return the speed-up of the universal scalability law through `PRINTED`, for a batch of that size.

    An iteration on n GPUs takes `shared / n + alone + exchanged * (n - 1)`. Only the first part grows with the batch.
    """
    return _seconds(1, batch) / _seconds(num_gpus, batch)


def _seconds(num_gpus: int, batch: int) -> float:
    """Return the seconds of an iteration, in units of one with `PRINTED_BATCH` on one GPU."""
    shared, alone, exchanged = _parts_of_an_iteration()
    return shared * batch / PRINTED_BATCH / num_gpus + alone + exchanged * (num_gpus - 1)


@cache
def _parts_of_an_iteration() -> tuple[float, float, float]:
    """Return the parts of an iteration: shared among GPUs, repeated by each, added by each further GPU."""
    saved_by_2 = 1.0 - 1.0 / PRINTED[2]
    saved_by_4 = 1.0 - 1.0 / PRINTED[4]
    shared = (3.0 * saved_by_2 - saved_by_4) / 0.75
    return shared, 1.0 - shared, shared / 2.0 - saved_by_2
