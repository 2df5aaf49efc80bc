"""Lays out the picture of a training: its value and its speed by iterations, with its GPUs as bands behind both. Pure.

`templates/job/curve_picture.html` draws it, for a page of the dashboard and, with a style of its own, for notebooks.
Lengths are those of the picture's own space, `WIDTH` wide; browsers scale it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Point = tuple[float, float]

WIDTH = 1000.0
LEFT = 90.0
RIGHT = 980.0
TOP, GAP, FOOT = 26.0, 30.0, 26.0  # room for the counts of GPUs, between two panels, for the iterations
VALUE_HEIGHT = 190.0
SPEED_HEIGHT = 90.0
LABEL = 60.0  # the least width of a band that has room for its count
SPEED = "iterations/s"  # its line begins at zero, so that one sees how much faster it is on more GPUs
NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Panel:
    """Axes with one line. `line`: the points of a polyline; `ticks`: (y, words) at its left."""

    name: str
    top: float
    bottom: float
    line: str
    ticks: list[tuple[float, str]]
    last: Point  # where the line ends


@dataclass(frozen=True)
class Band:
    """The iterations that were done on so many GPUs. `label`: empty where there is no room for it."""

    x: float
    width: float
    gpus: int
    shade: int  # 0 or 1: neighbours differ
    label: str
    title: str


@dataclass(frozen=True)
class CurvePicture:
    """`reshapes`: (x, words) where the GPU count changed; `across`: (x, words) of iterations."""

    height: float
    panels: list[Panel]
    bands: list[Band]
    reshapes: list[tuple[float, str]]
    across: list[tuple[float, str]]


def curve_picture(curve: Mapping[str, Any]) -> CurvePicture | None:
    """The picture of what `GET /v1/jobs/{id}/curve` answers; None where no line has two points."""
    values = [(float(at), float(value)) for at, value in curve["values"]]
    speeds = [(float(at), 1.0 / float(seconds)) for at, seconds in curve["speeds"] if seconds > 0]
    lines = [(str(curve["value_name"] or "value"), values, VALUE_HEIGHT), (SPEED, speeds, SPEED_HEIGHT)]
    drawn = [(name, line, height) for name, line, height in lines if len(line) > 1]
    if not drawn:
        return None
    first = min(line[0][0] for _, line, _ in drawn)
    last = max(line[-1][0] for _, line, _ in drawn)

    def x(at: float) -> float:
        return LEFT + (RIGHT - LEFT) * (min(max(at, first), last) - first) / ((last - first) or 1.0)

    panels = []
    top = TOP
    for name, line, height in drawn:
        panels.append(_panel(name, line, x, top, top + height))
        top += height + GAP
    bands = list(_bands(curve["gpus"], first, last, x))
    reshapes = [
        (after.x, f"from {before.gpus} to {after.gpus} GPUs after {at:.0f} iterations")
        for (before, after), (at, _) in zip(pairwise(bands), _within(curve["gpus"], first, last), strict=True)
    ]
    across = [(x(at), f"{at:,.0f}") for at in round_steps(first, last, 6)]
    return CurvePicture(top - GAP + FOOT, panels, bands, reshapes, across)


def round_steps(low: float, high: float, about: int) -> list[float]:
    """Some `about` round numbers from `low` to `high`, at least one."""
    span = high - low
    if span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(nice * power for nice in NICE if nice * power * about >= span)
    begin = math.ceil(low / step - 1e-9)
    found = [number * step for number in range(begin, begin + 2 * about + 2)]
    return [at for at in found if at <= high + 1e-9 * span] or [low]


def _panel(name: str, line: Sequence[Point], x: Callable[[float], float], top: float, bottom: float) -> Panel:
    values = [value for _, value in line]
    low, high = 0.0 if name == SPEED else min(values), max(values)
    if low == high:
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (-1.0, 1.0)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    points = [(x(at), y(value)) for at, value in line]
    ticks = [(y(value), f"{value:.4g}") for value in round_steps(low, high, 4 if bottom - top > SPEED_HEIGHT else 2)]
    return Panel(name, top, bottom, " ".join(f"{px:.1f},{py:.1f}" for px, py in points), ticks, points[-1])


def _within(gpus: Sequence[tuple[int, int]], first: float, last: float) -> list[tuple[float, int]]:
    """The changes of the GPU count after the first and before the last iteration that is drawn."""
    return [(float(at), int(count)) for at, count in gpus if first < at < last]


def _bands(gpus: Sequence[tuple[int, int]], first: float, last: float, x: Callable[[float], float]) -> Iterator[Band]:
    before = [count for at, count in gpus if at <= first]
    changes = _within(gpus, first, last)
    if before:
        changes = [(first, int(before[-1])), *changes]
    for number, ((begin, count), (end, _)) in enumerate(pairwise([*changes, (last, 0)])):
        width = x(end) - x(begin)
        said = f"{count} GPU{'s' * (count != 1)}"
        title = f"{said} from iteration {begin:.0f} to {end:.0f}"
        yield Band(x(begin), width, count, number % 2, said if width >= LABEL else "", title)
