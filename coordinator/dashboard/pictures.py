"""Lays out the picture of GPUs over time. Pure; templates draw it as SVG.

Lengths are those of the picture's own space, `WIDTH` wide; browsers scale it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from coordinator.dashboard.bars import Bar, all_bars, marks
from coordinator.dashboard.words import middle_cut

View = Mapping[str, Any]
Moment = Callable[[float], str]

WIDTH = 1000.0
LEFT_MOST = 130.0
TOP = 20.0
FOOT = 24.0
# Height for a GPU.
ROW = 26.0
DENSE_ROW = 15.0
FEW = 24  # GPUs; more have dense rows, so that 64 of them fit on a screen
PREDICTED = "predicted"  # the kind of a bar of the forecast
MOST_MARKS = 150  # more would cover one another
MOST_LETTERS = 15  # of the name of a row
LETTER = 8.0  # width of a letter in a bar
LETTER_OF_NAME = 7.5  # and in the name of a row
NICE_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


Coming = Sequence[tuple[str, str, float, float]]  # GPU, job, begin and end in seconds since 1970


@dataclass(frozen=True)
class Window:
    """The time that is shown, in seconds since 1970; what comes after `now` is a forecast."""

    begin: float
    end: float
    now: float
    coming: Coming = ()
    ahead_s: float = 0.0  # by which the reader's clocks are ahead of UTC

    @property
    def span(self) -> float:
        return max(1.0, self.end - self.begin)


@dataclass(frozen=True)
class Block:
    """A bar as it is drawn. `label`: as much of the job's name as fits."""

    x: float
    y: float
    width: float
    height: float
    bar: Bar
    label: str
    title: str


@dataclass(frozen=True)
class Timeline:
    """GPUs over time. `rows`: (y, name), each `row` high; `ticks` and `notes`: (x, words).

    `left`: where the time begins, behind the names; `now`: where the forecast begins.
    """

    height: float
    left: float
    row: float
    rows: list[tuple[float, str]]
    blocks: list[Block]
    ticks: list[tuple[float, str]]
    notes: list[tuple[float, str]]
    now: float | None
    window: Window


def timeline(
    events: Sequence[View], gpus: Sequence[View], window: Window, moment: Moment, job: str | None = None
) -> Timeline:
    """The GPUs given, in this time; with `job` only its bars and marks.

    A GPU that no event speaks of is used as it is now, all the time.
    """
    begin, span = window.begin, window.span
    known = min(window.now, window.end)
    bars = [*all_bars(events, gpus, begin, known), *_ghosts(window)]
    names = [str(gpu["gpu_id"]) for gpu in gpus]
    if job is not None:
        used = {bar.gpu for bar in bars if bar.job == job and bar.end > 0}
        names, bars = [name for name in names if name in used], [bar for bar in bars if bar.job == job]
    row = ROW if len(names) <= FEW else DENSE_ROW
    y = {name: TOP + row * i for i, name in enumerate(names)}
    shown = {str(gpu["gpu_id"]): _row_name(gpu) for gpu in gpus}
    rows = [(y[name], shown[name]) for name in names]
    left = min(LEFT_MOST, 14.0 + LETTER_OF_NAME * max((len(name) for _, name in rows), default=0))

    def x(at: float) -> float:
        return left + (WIDTH - left) * min(max(at / span, 0.0), 1.0)

    seen = [bar for bar in bars if bar.gpu in y and bar.end > 0 and bar.begin < span]
    above = _same_as_above(seen, names)
    blocks = [_drawn_block(bar, x, y[bar.gpu], row, begin, moment, bar not in above) for bar in seen]
    about = [(at, words) for at, words in marks(events, begin, job) if 0 <= at <= span]
    notes = [(x(at), f"{moment(begin + at)}: {words}") for at, words in about[-MOST_MARKS:]]
    ticks = [(x(at - begin), moment(at)) for at in _drawn_ticks(window)]
    now = x(window.now - begin) if begin < window.now < window.end else None
    return Timeline(TOP + row * len(names) + FOOT, left, row, rows, blocks, ticks, notes, now, window)


def _row_name(gpu: View) -> str:
    """Return its name; instead of a UUID, which tells people nothing, its node and its number there."""
    name = str(gpu["gpu_id"])
    if len(name) <= MOST_LETTERS:
        return name
    if gpu.get("index") is None:
        return f"…{name[1 - MOST_LETTERS :]}"
    number = f" {gpu['index']}"
    return middle_cut(str(gpu["node"]), MOST_LETTERS - len(number)) + number


def _ghosts(window: Window) -> list[Bar]:
    """Bars of what is predicted, from now on."""
    found = []
    for gpu, job, begin, end in window.coming:
        if end > window.now:
            found.append(Bar(gpu, job, max(begin, window.now) - window.begin, end - window.begin, PREDICTED))
    return found


def _same_as_above(bars: Sequence[Bar], names: Sequence[str]) -> set[Bar]:
    """Return the bars of jobs on several GPUs beside one another that say the same as the bar above them."""
    below = dict(pairwise(names))
    known = set(bars)
    return {same for bar in bars if bar.gpu in below and (same := replace(bar, gpu=below[bar.gpu])) in known}


def _drawn_block(
    bar: Bar, x: Callable[[float], float], y: float, row: float, begin: float, moment: Moment, is_named: bool
) -> Block:
    width = max(1.0, x(bar.end) - x(bar.begin))
    fits = int((width - 8) / LETTER)
    label = middle_cut(bar.job, fits) if is_named and fits >= 3 and bar.kind != "stopped" else ""
    title = f"{bar.gpu}: {bar.job}, {bar.kind}, {moment(begin + bar.begin)} to {moment(begin + bar.end)}"
    return Block(x(bar.begin), y, width, row - 4.0 if row == ROW else row - 1.0, bar, label, title)


def _drawn_ticks(window: Window) -> list[float]:
    """Return some five times that are round for the reader."""
    begin = window.begin + window.ahead_s
    end = window.end + window.ahead_s
    step = next((nice for nice in NICE_S if (end - begin) / nice <= 6), NICE_S[-1])
    return [at * step - window.ahead_s for at in range(math.ceil(begin / step), math.floor(end / step) + 1)][:12]
