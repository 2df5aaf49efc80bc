"""Lays out when each job runs, as things stand and with the changes of a what-if, one above the other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.dashboard.curve_picture import round_steps
from coordinator.dashboard.words import middle_cut, seconds

View = Mapping[str, Any]

WIDTH = 985.0
LEFT_MOST = 190.0
MOST_LETTERS = 24  # of a name
LETTER = 7.5  # width of one
ROW = 22.0
TOP = 6.0
FOOT = 26.0
MOST_ROWS = 60
SAME = 0.01  # of its end: what differs by less is drawn as the same
ROUND_S = (60.0, 3600.0)


@dataclass(frozen=True)
class GanttBar:
    """Bar of one job. `kind`: same, earlier, later (its end, beside now) or added. `name`: as much of it as fits."""

    job: str
    name: str
    x: float
    y: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True)
class GanttPicture:
    """`then` is empty where nothing was changed. `left`: where the time begins, behind the names."""

    height: float
    left: float
    now: list[GanttBar]
    then: list[GanttBar]
    ticks: list[tuple[float, str]]


def gantt(times: Sequence[View]) -> GanttPicture | None:
    """The picture of `times`, as `WhatIf.times` gives them; None where no job ends. An end of None never comes."""
    shown = times[:MOST_ROWS]
    ends = [found[1] for one in shown for found in (one["now"], one["then"]) if found and found[1] is not None]
    if not ends or max(ends) <= 0:
        return None
    last = float(max(ends))
    names = {str(one["job_id"]): middle_cut(str(one["job_id"]), MOST_LETTERS) for one in shown}
    left = min(LEFT_MOST, 14.0 + LETTER * max(map(len, names.values())))

    def x(at: float) -> float:
        return left + (WIDTH - left) * min(1.0, at / last)

    def bar(job: str, found: Sequence[float | None], row: int, kind: str) -> GanttBar:
        start = found[0] or 0.0
        end = found[1]
        until = last if end is None else end
        said = "never ends" if end is None else f"ends in {seconds(end)}"
        began = f"starts in {seconds(start)}" if start else "runs"
        return GanttBar(
            job, names[job], x(start), TOP + ROW * row, max(2.0, x(until) - x(start)), kind, f"{job}: {began}, {said}"
        )

    now = [bar(str(one["job_id"]), one["now"], row, "same") for row, one in enumerate(shown) if one["now"]]
    then = [
        bar(str(one["job_id"]), one["then"], row, _kind(one["now"], one["then"]))
        for row, one in enumerate(shown)
        if one["then"]
    ]
    unit = next((unit for unit in reversed(ROUND_S) if last >= 2 * unit), 1.0)
    name = {3600.0: "h", 60.0: "min"}.get(unit, "s")
    ticks = [(x(at * unit), f"{at:g} {name}") for at in round_steps(0.0, last / unit, 6)]
    return GanttPicture(TOP + ROW * len(shown) + FOOT, left, now, then, ticks)


def _kind(now: Sequence[float | None] | None, then: Sequence[float | None]) -> str:
    if now is None:
        return "added"
    before, after = (float("inf") if end is None else end for end in (now[1], then[1]))
    if before == after or abs(after - before) <= SAME * max(before, 1.0):
        return "same"
    return "earlier" if after < before else "later"
