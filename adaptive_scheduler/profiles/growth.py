"""Measures how a job's evaluation value grows: SpeCon's categories and FlowCon's growth efficiency.

`categorise` (SpeCon, Algorithm 1) and `measure` (FlowCon, first half of Algorithm 1) turn a reading at the end of an
interval into the job's next record (`algorithms.md` 5.2). The coordinator and the simulator keep the records; policies
read them in the snapshot. An interval with a restart, a move or a GPU change is discarded (X8). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from adaptive_scheduler.settings import FlowCon, SpeCon

Category = Literal["PC", "WC", "CC"]
"""Progressing, watching, converged: SpeCon's classes of growth (SpeCon, II-B)."""

LimitList = Literal["NL", "WL", "CL"]
"""New, watching, completing: FlowCon's lists."""


@dataclass(frozen=True, slots=True)
class EvaluationReading:
    """The measurements of a job at the end of an interval."""

    at_s: float
    value: float | None  # the newest evaluation value E, of any kind and scale
    evaluations: int  # number of values so far; unchanged: no new value (S3)
    iterations: float  # done so far
    generation: int  # changes with each stop and start (X8)
    usage: Mapping[str, float] = field(default_factory=dict)  # mean since the last reading, by resource (cpu: cores)
    limits: int = 0  # limit changes so far (X5)


@dataclass(frozen=True, slots=True)
class Growth:
    """SpeCon's record of a job; `growth` is per interval, relative to the range of E (S1), or raw."""

    category: Category = "PC"
    growth: float | None = None
    slow_again: bool = False  # converged, and slowed once more in the last interval
    converged_s: float | None = None  # time it became CC
    low: float | None = None  # the range of E so far
    high: float | None = None
    pace: float | None = None  # iterations per second before a limit last changed (X5)
    last: EvaluationReading | None = None  # reading from which growth is measured


@dataclass(frozen=True, slots=True)
class Efficiency:
    """FlowCon's record of a job: growth per second and per unit of each resource. `share` is relative to the job's own
    peak, 0..1 (F1); 1 while nothing is measured."""

    list: LimitList = "NL"
    measured: bool = False
    raw: Mapping[str, float] = field(default_factory=dict)
    peak: Mapping[str, float] = field(default_factory=dict)
    share: Mapping[str, float] = field(default_factory=dict)
    last: EvaluationReading | None = None  # reading from which growth is measured
    spent: Mapping[str, float] = field(default_factory=dict)  # use since `last`, in unit x seconds
    read_s: float = 0.0  # end of `spent`


UNSEEN = Growth()
UNMEASURED = Efficiency()

LEAST_RANGE = 1e-12
"""A value that has moved by no more than this so far has not grown (S1)."""

SLOWED: Mapping[Category, Category] = {"PC": "WC", "WC": "CC", "CC": "CC"}
"""Next category of a job whose growth is small and has slowed once more (S4)."""


def categorise(record: Growth, reading: EvaluationReading, settings: SpeCon, migrated: bool = False) -> Growth:
    """Return the record after one more interval: SpeCon, Algorithm 1 (2.3), for one job. Without a new value the
    interval counts into the next (S3); after a restart or move the reading only begins a new one (X8). `migrated`: the
    job has used its one move, which matters to `freeze_migrated` alone (S6)."""
    record, last = replace(record, slow_again=False), record.last
    if not _has_value(reading) or (last is not None and reading.evaluations == last.evaluations):
        return record
    if last is None or reading.generation != last.generation:
        return replace(record, last=reading)
    assert reading.value is not None and last.value is not None
    ends = (reading.value, last.value) if record.low is None or record.high is None else (record.low, record.high)
    low, high = min(reading.value, *ends), max(reading.value, *ends)
    growth = min(abs(reading.value - last.value), MOST_GROWTH)
    if settings.growth == "range":
        growth /= min(max(LEAST_RANGE, high - low), MOST_GROWTH)
    growth, pace = _at_its_pace(growth, record.pace, last, reading)
    before, record = record, replace(record, growth=growth, low=low, high=high, pace=pace, last=reading)
    if before.growth is None or (migrated and settings.freeze_migrated):  # S2, S6
        return record
    return _sorted_in(record, before.growth, settings)


def _sorted_in(record: Growth, growth_before: float, settings: SpeCon) -> Growth:
    """Change the category by at most one step per interval (S4); growth of exactly alpha still progresses (S5). A value
    that stands still converges: zero growth after zero growth has not risen."""
    assert record.growth is not None and record.last is not None
    if record.growth >= settings.alpha:
        return replace(record, category="PC", converged_s=None)
    if record.growth > growth_before or (record.growth == growth_before and settings.slowing == "strict"):
        return record
    enters = record.category == "WC"
    return replace(
        record,
        category=SLOWED[record.category],
        converged_s=record.last.at_s if enters else record.converged_s,
        slow_again=record.category == "CC",
    )


def _at_its_pace(
    growth: float, pace: float | None, last: EvaluationReading, reading: EvaluationReading
) -> tuple[float, float | None]:
    """Return growth and pace; after a change of its limit, growth is scaled to the iterations of the interval before
    (X5). So a changed limit does not look like changed growth. Under a constant limit a job is not scaled: else jobs
    that FlowCon holds back would never converge and never move."""
    seconds, iterations = reading.at_s - last.at_s, reading.iterations - last.iterations
    if seconds <= 0 or iterations <= 0:
        return growth, pace
    if reading.limits != last.limits and pace is not None:
        return min(growth * pace * seconds / iterations, MOST_GROWTH), pace
    return growth, iterations / seconds


LEAST_USE = 0.01
"""Least use of a resource that counts, so that almost none does not set a peak for ever."""

MOST_GROWTH = 1e100
"""Cap on growth per second, which keeps every quotient of an exploding value finite."""


def measure(record: Efficiency, reading: EvaluationReading, settings: FlowCon) -> Efficiency:
    """Return the record after one more reading: FlowCon, Algorithm 1, first half (3.3). Growth per second is divided by
    the mean use of each resource since the last measured reading. An interval without a new value, or shorter than
    `min_dt_s`, counts into the next (F8); one with a restart, or without CPU use, is forgotten (X8), list and share are
    kept. Lists depend on the CPU alone (F2); a job moves at most one list per reading."""
    last = record.last
    if last is None or reading.generation != last.generation or "cpu" not in reading.usage:
        return replace(record, last=reading if _has_value(reading) else None, spent={}, read_s=reading.at_s)
    lasted = reading.at_s - record.read_s
    spent = {r: record.spent.get(r, 0.0) + used * lasted for r, used in reading.usage.items()}
    seconds = reading.at_s - last.at_s
    nothing_new = not _has_value(reading) or reading.evaluations == last.evaluations
    if nothing_new or seconds <= 0 or seconds < settings.min_dt_s:
        return replace(record, spent=spent, read_s=reading.at_s)
    growth = min(abs((reading.value or 0.0) - (last.value or 0.0)) / seconds, MOST_GROWTH)
    raw = {r: growth / max(used / seconds, LEAST_USE) for r, used in spent.items()}
    peak = {r: max(record.peak.get(r, 0.0), g) for r, g in raw.items()}
    share = {r: g / peak[r] if peak[r] > 0 else 0.0 for r, g in raw.items()}
    efficient = (share if settings.efficiency == "peak" else raw)["cpu"] >= settings.alpha
    now_in = "NL" if efficient else SLOWER[record.list]
    return Efficiency(now_in, True, raw, peak, share, reading, {}, reading.at_s)


def _has_value(reading: EvaluationReading) -> bool:
    return reading.value is not None and math.isfinite(reading.value)


SLOWER: Mapping[LimitList, LimitList] = {"NL": "WL", "WL": "CL", "CL": "CL"}
"""Next list of a job found slow once more."""
