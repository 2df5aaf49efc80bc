"""Lays out the picture of GPUs over time. Pure; templates draw it as SVG.

Lengths are those of the picture's own space, `WIDTH` wide; browsers scale it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.dashboard.bars import Bar, gpu_bars, marks

View = Mapping[str, Any]
Moment = Callable[[float], str]

WIDTH, LEFT, ROW, TOP, FOOT = 1000.0, 130.0, 26.0, 20.0, 24.0
MOST_MARKS = 150  # more would cover one another
LETTER = 7.2  # width of a letter in a bar
NICE_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True)
class Block:
    """A bar as it is drawn. `label`: as much of the job's name as fits."""

    x: float
    y: float
    width: float
    bar: Bar
    label: str
    title: str


@dataclass(frozen=True)
class Timeline:
    """GPUs over time. `rows`: (y, name); `ticks` and `notes`: (x, words)."""

    height: float
    rows: list[tuple[float, str]]
    blocks: list[Block]
    ticks: list[tuple[float, str]]
    notes: list[tuple[float, str]]


def timeline(
    events: Sequence[View], gpus: Sequence[View], begin: float, end: float, moment: Moment, job: str | None = None
) -> Timeline:
    """The GPUs given, from `begin` to `end` (seconds since 1970); with `job` only its bars and marks.

    A GPU that no event speaks of is used as it is now, all the time.
    """
    span = max(1.0, end - begin)
    bars = [*_always(events, gpus, span), *gpu_bars(events, begin, end)]
    names = [str(gpu["gpu_id"]) for gpu in gpus]
    if job is not None:
        used = {bar.gpu for bar in bars if bar.job == job and bar.end > 0}
        names, bars = [name for name in names if name in used], [bar for bar in bars if bar.job == job]
    y = {name: TOP + ROW * i for i, name in enumerate(names)}

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT) * min(max(at / span, 0.0), 1.0)

    blocks = [_block(bar, x, y[bar.gpu], begin, moment) for bar in bars if bar.gpu in y and bar.end > 0]
    about = [(at, words) for at, words in marks(events, begin, job) if 0 <= at <= span]
    notes = [(x(at), f"{moment(begin + at)}: {words}") for at, words in about[-MOST_MARKS:]]
    ticks = [(x(at - begin), moment(at)) for at in _ticks(begin, end)]
    rows = [(y[name], name if len(name) <= 15 else f"…{name[-14:]}") for name in names]
    return Timeline(TOP + ROW * len(names) + FOOT, rows, blocks, ticks, notes)


def _always(events: Sequence[View], gpus: Sequence[View], span: float) -> list[Bar]:
    """Bars of GPUs that have not changed hands since the first of the events."""
    changed = {str(event["gpu_id"]) for event in events if event["type"] == "gpu"}
    still = [gpu for gpu in gpus if gpu.get("held_by") is not None and str(gpu["gpu_id"]) not in changed]
    return [Bar(str(gpu["gpu_id"]), str(gpu["held_by"]), 0.0, span) for gpu in still]


def _block(bar: Bar, x: Callable[[float], float], y: float, begin: float, moment: Moment) -> Block:
    width = max(1.0, x(bar.end) - x(bar.begin))
    fits = int((width - 8) / LETTER)
    whole = bar.job if len(bar.job) <= fits else f"{bar.job[: fits - 1]}…"
    label = whole if fits >= 3 and bar.kind != "stopped" else ""
    title = f"{bar.gpu}: {bar.job}, {bar.kind}, {moment(begin + bar.begin)} to {moment(begin + bar.end)}"
    return Block(x(bar.begin), y, width, bar, label, title)


def _ticks(begin: float, end: float) -> list[float]:
    """Some five round times between the two."""
    step = next((nice for nice in NICE_S if (end - begin) / nice <= 6), NICE_S[-1])
    return [float(at * step) for at in range(math.ceil(begin / step), math.floor(end / step) + 1)][:12]
