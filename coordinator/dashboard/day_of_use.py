"""Sums up what GPUs did in the last 24 hours: held by jobs and measured as busy, and which jobs held most. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coordinator.dashboard.bars import all_bars
from coordinator.dashboard.rows import natural_order

DAY_S = 24 * 3600.0
QUARTER_S = 900.0
HOUR_S = 3600.0
MOST_JOBS = 6


@dataclass(frozen=True)
class QuarterOfUse:
    """Quarter of an hour. `held`, `busy`: shares of all GPUs; None where no coordinator watched, or nothing measured.

    `busy_of_measured`: the share of the measured time that those GPUs were busy.
    """

    begin: float  # in seconds since 1970
    held: float | None
    busy: float | None
    busy_of_measured: float | None


@dataclass(frozen=True)
class NodeUse:
    """Sums up what was measured of the GPUs of a node: GPU-hours, and the share of them that the GPUs were busy."""

    node: str
    hours: float
    busy: float


@dataclass(frozen=True)
class DayOfUse:
    """The last 24 hours, of which `quarters` has the oldest first."""

    quarters: list[QuarterOfUse]
    held_hours: float
    hours_there: float  # of all GPUs, while a coordinator watched
    measured_hours: float
    busy_hours: float
    nodes: list[NodeUse]
    jobs: list[tuple[str, float]]  # those with the most GPU-hours
    others: float  # GPU-hours of all other jobs
    jobs_known_from: float | None  # since when, where events no longer tell of the whole time

    @property
    def held_share(self) -> float:
        """Return the share of all GPU-hours that jobs held."""
        return _share_of_all(self.held_hours, self.hours_there) or 0.0

    @property
    def busy_share(self) -> float | None:
        """Return the share of the measured GPU-hours that GPUs were busy; None where nothing was measured."""
        return _share_of_all(self.busy_hours, self.measured_hours)

    @property
    def ticks(self) -> list[float]:
        """Return begin and end, and the times between them at each sixth hour."""
        begin = self.quarters[0].begin
        return [begin + 6 * HOUR_S * number for number in range(5)]

    @cached_property
    def _by_node(self) -> dict[str, NodeUse]:
        return {one.node: one for one in self.nodes}

    def busy_of_node(self, node: object) -> str:
        """Format what was measured of one node; empty where nothing was."""
        found = self._by_node.get(str(node))
        return "" if found is None else f"{100 * found.busy:.0f} % busy in 24 h"


def use_of_a_day(
    use: Mapping[str, Any], events: Sequence[Mapping[str, Any]], gpus: Sequence[Mapping[str, Any]]
) -> DayOfUse:
    """`use`: as `PageSource.gpu_use` returns it; `events`: the newest, oldest first; `gpus`: all there are now."""
    quarters = use["quarters"]
    sums = {name: sum(one[name] for one in quarters) / HOUR_S for name in ("there_s", "held_s", "measured_s", "busy_s")}
    nodes = [
        NodeUse(node, seconds / HOUR_S, busy / seconds) for node, (seconds, busy) in use["nodes"].items() if seconds
    ]
    begin = quarters[0]["begin"]
    end = use["until"]
    by_job: dict[str, float] = {}
    for bar in all_bars(events, gpus, begin, end) if events else ():
        first = max(0.0, bar.begin, float(events[0]["at"]) - begin)
        if bar.kind == "in use" and bar.end > first:
            by_job[bar.job] = by_job.get(bar.job, 0.0) + (bar.end - first) / HOUR_S
    most = sorted(by_job.items(), key=lambda job: -job[1])[:MOST_JOBS]
    others = sum(by_job.values()) - sum(hours for _, hours in most)
    watched = next((one["begin"] for one in quarters if one["there_s"]), end)
    known_from = float(events[0]["at"]) if events else end
    return DayOfUse(
        [_drawn_quarter(one) for one in quarters],
        sums["held_s"],
        sums["there_s"],
        sums["measured_s"],
        sums["busy_s"],
        sorted(nodes, key=lambda one: natural_order(one.node)),
        most,
        others,
        known_from if known_from > max(watched, begin) + QUARTER_S else None,
    )


def _drawn_quarter(sums: Mapping[str, float]) -> QuarterOfUse:
    return QuarterOfUse(
        sums["begin"],
        _share_of_all(sums["held_s"], sums["there_s"]),
        _share_of_all(sums["busy_s"], sums["there_s"]) if sums["measured_s"] else None,
        _share_of_all(sums["busy_s"], sums["measured_s"]),
    )


def _share_of_all(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None
