"""Sums up what GPUs were used for in the last 24 hours, from the events of the coordinator. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.dashboard.bars import all_bars

DAY_S = 24 * 3600.0
QUARTER_S = 900.0
MINUTE_S = 60.0
BINS = int(DAY_S / QUARTER_S)
MOST_JOBS = 6


@dataclass(frozen=True)
class DayOfUse:
    """`shares`: of each quarter of an hour the share of GPUs in use, None before the first event that is kept."""

    begin: float  # of the first quarter, in seconds since 1970
    known_from: float  # events tell of the time from here on
    shares: list[float | None]
    gpu_hours: float
    hours_there: float  # of all GPUs in that time
    jobs: list[tuple[str, float]]  # those with the most GPU-hours
    others: float  # GPU-hours of all other jobs

    @property
    def share(self) -> float:
        """Return the share of all GPU-hours that was used."""
        return self.gpu_hours / self.hours_there if self.hours_there else 0.0


def use_of_a_day(events: Sequence[Mapping[str, Any]], gpus: Sequence[Mapping[str, Any]], now: float) -> DayOfUse:
    """`events`: the newest ones, oldest first; `gpus`: all that there are now; `now`: seconds since 1970."""
    now = MINUTE_S * math.floor(now / MINUTE_S)  # the same for a minute, so that an open page is not sent it each time
    end = QUARTER_S * math.ceil(now / QUARTER_S)  # the quarters stay where they are as time goes on
    begin = end - DAY_S
    known_from = min(now, max(begin, float(events[0]["at"]))) if events else now
    seconds = [0.0] * BINS
    by_job: dict[str, float] = {}
    for bar in all_bars(events, gpus, begin, now):
        first, last = max(bar.begin, known_from - begin), min(bar.end, now - begin)
        if bar.kind != "in use" or last <= first:
            continue
        by_job[bar.job] = by_job.get(bar.job, 0.0) + last - first
        for number in range(int(first / QUARTER_S), min(BINS, int(last / QUARTER_S) + 1)):
            seconds[number] += max(0.0, min(last, (number + 1) * QUARTER_S) - max(first, number * QUARTER_S))
    known = known_from - begin, now - begin
    shares = [_share(used, len(gpus), number * QUARTER_S, known) for number, used in enumerate(seconds)]
    most = sorted(by_job.items(), key=lambda job: -job[1])[:MOST_JOBS]
    total = sum(by_job.values())
    others = total - sum(used for _, used in most)
    hours = [(job, used / 3600) for job, used in most]
    return DayOfUse(
        begin, known_from, shares, total / 3600, len(gpus) * (now - known_from) / 3600, hours, others / 3600
    )


def _share(used: float, gpus: int, begin: float, known: tuple[float, float]) -> float | None:
    """Return the share of GPUs in use, of the part of a quarter of an hour that is known."""
    first, last = known
    width = min(begin + QUARTER_S, last) - max(begin, first)
    return min(1.0, used / (gpus * width)) if width > 0 and gpus else None
