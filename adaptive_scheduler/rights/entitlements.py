"""Divides GPUs among queues and users by guarantee, weight and lately used GPU-hours (`algorithms.md` 1.13).

Capacity is filled like communicating vessels: guarantees first, the rest in proportion to the weights, nobody above its
demand. `round_to_gpus` rounds so that the sum stays. Called by `standing.py`. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from adaptive_scheduler.shares import JobOwner

K = TypeVar("K", JobOwner, str)

TINY = 1e-9

MOST_CREDIT = 2.0
"""Credit is clamped to this, so that a weight counts at most four times and at least a quarter."""


class Party(NamedTuple):
    """A queue or a user that shares. `first`: served before all weights."""

    demand: float
    first: float
    weight: float


def credit_of(use: float, total_use: float, share: float, window: float) -> float:
    """Return by how much less than its share one has used lately, in shares of a full window; 0 in balance.

    `window`: the decayed use of all GPUs held for ever.
    """
    if window <= 0 or share <= 0:
        return 0.0
    return max(-MOST_CREDIT, min(MOST_CREDIT, (share * total_use - use) / (share * window)))


def divide_by_weight(capacity: float, parties: Mapping[K, Party]) -> dict[K, float]:
    """Return what each is entitled to, not rounded. The sum is the smaller of capacity and total demand."""
    got = {name: min(one.demand, one.first) for name, one in parties.items()}
    total = sum(got.values())
    if total > capacity:
        return {name: value * capacity / total for name, value in got.items()}
    left = capacity - total
    left = _fill_by_weight(left, got, {name: one for name, one in parties.items() if one.weight > 0})
    # What nobody with a weight wants goes to the others in equal parts.
    _fill_by_weight(left, got, {name: one._replace(weight=1.0) for name, one in parties.items() if one.weight <= 0})
    return got


def _fill_by_weight(left: float, got: dict[K, float], parties: Mapping[K, Party]) -> float:
    """Add to `got` in proportion to the weights, nobody above its demand; return what is left."""
    weights = sum(one.weight for one in parties.values())

    def gap(name: K) -> float:
        return parties[name].demand - got[name]

    order = sorted(parties, key=lambda name: (gap(name) / parties[name].weight, name))
    for place, name in enumerate(order):
        if weights <= TINY:
            break
        level = left / weights
        if gap(name) > level * parties[name].weight:
            for other in order[place:]:
                got[other] += level * parties[other].weight
            return 0.0
        left -= gap(name)
        weights -= parties[name].weight
        got[name] = parties[name].demand
    return max(0.0, left)


def round_to_gpus(
    entitled: Mapping[K, float], demand: Mapping[K, float], credit: Mapping[K, float], total: float
) -> dict[K, int]:
    """Return the entitlements in whole GPUs: rounded down, then one more each until `total` or all demand is used.

    By larger remainder, larger credit, name; nobody gets one who has no remainder, or more than is wanted.
    """
    got = {name: math.floor(value + TINY) for name, value in entitled.items()}
    left = math.floor(min(total, sum(demand.values())) + TINY) - sum(got.values())
    remainder = {name: round(value - got[name], 6) for name, value in entitled.items()}
    for name in sorted(entitled, key=lambda name: (-remainder[name], -credit[name], name)):
        if left <= 0:
            break
        if remainder[name] > 0 and got[name] + 1 <= demand[name] + TINY:
            got[name] += 1
            left -= 1
    return got
