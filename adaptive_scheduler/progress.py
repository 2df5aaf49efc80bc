"""How a job's evaluation value grows: one record each for SpeCon's categories and FlowCon's lists.

The shared progress service of `algorithms.md` 5.2, pure: `categorise` (seed 000/002, Algorithm 1) and
`measure` (seed 001, the lists of Algorithm 1) turn what was read of a job at the end of an interval into
its next record. Called by the coordinator and by the simulator, which keep the records; policies read
them in the snapshot. An interval with a restart, a move or a GPU change in it is discarded (X8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Category = Literal["PC", "WC", "CC"]
"""Progressing, watching, converged: how fast a job still grows (seed 000, II-B)."""

LimitList = Literal["NL", "WL", "CL"]
"""New, watching, completing: the lists of seed 001."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of a job at the end of an interval."""

    at_s: float
    value: float | None  # the newest evaluation value E, of any kind and scale
    evaluations: int  # how many values there were so far; the same number again: nothing new (S3)
    iterations: float  # done so far
    generation: int  # another one than before: stopped and started again in between (X8)
    usage: Mapping[str, float] = field(
        default_factory=dict
    )  # mean since the last reading, by resource; cores for "cpu"
    limits: int = 0  # how often a limit was changed so far (X5)


@dataclass(frozen=True, slots=True)
class Growth:
    """SpeCon's record of a job; `growth` is per interval, normalised to the range of E (S1), or raw."""

    category: Category = "PC"
    growth: float | None = None
    slow_again: bool = False  # it was converged and has slowed once more in the interval that just ended
    converged_s: float | None = None  # when it became CC
    low: float | None = None  # the range of E so far
    high: float | None = None
    last: Reading | None = None


@dataclass(frozen=True, slots=True)
class Efficiency:
    """FlowCon's record of a job: growth per second and per unit of each resource.

    `share` is relative to the job's own peak, 0..1 (F1); 1 while nothing is measured.
    """

    list: LimitList = "NL"
    measured: bool = False
    raw: Mapping[str, float] = field(default_factory=dict)
    peak: Mapping[str, float] = field(default_factory=dict)
    share: Mapping[str, float] = field(default_factory=dict)
    last: Reading | None = None


UNSEEN = Growth()
UNMEASURED = Efficiency()
