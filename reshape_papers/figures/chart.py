"""Describes a chart as values: panels of lines, bars and spans, with the paper's published numbers beside ours.

Built by the other modules of this package, drawn by `reshape_papers/charts.py`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

Points = list[tuple[float, float]]

POLICIES = ("default", "termination", "sidecar-printed", "sidecar")
"""Policies that have the same colour, dashes and hatches in every chart, also where some of them are left out."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A curve; `published`: points that the paper prints, drawn as single marks.

    `drawn`: "step" holds until the next point; "area" is a step stacked on the areas before it; "marked" is a line with
    a mark at each point.
    """

    name: str
    points: Points
    drawn: Literal["line", "step", "area", "marked"] = "line"
    published: bool = False


@dataclass(frozen=True, slots=True)
class ChartBars:
    """A bar per group, with `spread` above and below, and a mark where the paper publishes the same number."""

    name: str
    values: Mapping[str, float]
    paper: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """A time span in a row; spans with the same `of` share a colour. `idle`: nobody trains there."""

    row: str
    of: str
    begin: float
    end: float
    idle: bool = False


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A moment: in one row, or else a vertical line, dashed where the paper printed that time."""

    at: float
    words: str
    row: str | None = None
    published: bool = False


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """One pair of axes. `ticks`: the only values of x worth a number; `log`: logarithmic y."""

    title: str
    x: str
    y: str = ""
    lines: Sequence[ChartLine] = ()
    bars: Sequence[ChartBars] = ()
    spans: Sequence[ChartSpan] = ()
    marks: Sequence[ChartMark] = ()
    ticks: Sequence[int] = ()
    log: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure. `origin` says where its numbers come from, such as "Simulated, seed 0"; `notes` go below it."""

    title: str
    origin: str
    panels: Sequence[ChartPanel]
    notes: Sequence[str] = ()


def distribution(values: Iterable[float]) -> Points:
    """Return the cumulative distribution: the share of values that are at most each value."""
    ordered = sorted(values)
    return [(0.0, 0.0), *((value, i / len(ordered)) for i, value in enumerate(ordered, 1))]


def at_once(spans: Iterable[tuple[float, float]]) -> Points:
    """Return the number of spans (begin, end) that cover each moment."""
    changes: dict[float, int] = {}
    for begin, end in spans:
        changes[begin] = changes.get(begin, 0) + 1
        changes[end] = changes.get(end, 0) - 1
    moments = sorted(changes)
    return list(zip(moments, map(float, accumulate(changes[m] for m in moments)), strict=True))
