"""Draws charts of `reshape_papers/figures` with matplotlib, without a display.

Promises colours that colour-blind people can tell apart (Okabe-Ito), hatches and dashes where colours repeat or a print
has none, and one mark for everything published: a diamond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from reshape_papers.figures.chart import POLICIES, Chart, ChartBars, ChartLine, ChartPanel

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#777777")  # Okabe-Ito without yellow
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
HATCHES = ("", "///", "...", "xxx")
WIDTH = 8.0
ROW = 0.2
"""Inches of a row of spans."""
LABELLED = 12
"""So few bars carry their numbers."""
TALL_NAMES = 6
"""More names than these stand upright below an axis."""

WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
"""Box behind words that stand on something."""

LETTERS = 115
"""So many letters of a legend stand beside each other."""

Looks = dict[str, int]
"""By name: its place among colours, dashes and hatches."""


def draw(chart: Chart) -> Any:
    """Return the matplotlib figure of a chart."""
    from matplotlib.figure import Figure  # needs no display, unlike pyplot

    heights = [_height(panel) for panel in chart.panels]
    figure: Any = Figure(figsize=(WIDTH, sum(heights) + 1.3), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.06, rect=(0.0, 0.0, 1.0, 0.985))
    one_axis = len({panel.x for panel in chart.panels}) == 1
    rows = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights, sharex=one_axis)[:, 0]
    looks = _looks(chart)
    for axes, panel in zip(rows, chart.panels, strict=True):
        _panel(axes, panel, looks)
    if one_axis:
        for axes in rows[:-1]:
            axes.set_xlabel("")
    figure.suptitle(f"{chart.title}\n{chart.origin}", x=0.01, ha="left", fontsize=11)
    _legend(figure, rows, looks, "\n".join(chart.notes))
    return figure


def _height(panel: ChartPanel) -> float:
    rows = len({span.row for span in panel.spans})
    return 0.5 + max(1.1, ROW * rows) if rows else 2.4


def _looks(chart: Chart) -> Looks:
    names = (
        thing for panel in chart.panels for thing in (
            *(line.name for line in panel.lines if not line.published),
            *(bars.name for bars in panel.bars),
            *sorted({span.of for span in panel.spans if not span.idle}),
        )
    )  # fmt: skip
    shown = dict.fromkeys(names)
    looks = {name: i for i, name in enumerate(POLICIES) if name in shown}
    free = (i for i in count() if i not in looks.values())
    return looks | {name: next(free) for name in shown if name not in looks}


def _colour(looks: Looks, name: str) -> str:
    return COLOURS[looks[name] % len(COLOURS)] if name in looks else "black"


def _hatch(looks: Looks, name: str) -> str:
    return HATCHES[looks[name] // len(COLOURS) % len(HATCHES)]


def _panel(axes: Any, panel: ChartPanel, looks: Looks) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.set_xlabel(panel.x, fontsize=9)
    axes.set_ylabel(panel.y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    _areas(axes, [line for line in panel.lines if line.drawn == "area"], looks)
    for line in panel.lines:
        _line(axes, line, looks)
    _bars(axes, panel.bars, looks)
    _spans(axes, panel, looks)
    _moments(axes, panel)
    if panel.ticks:
        axes.set_xticks(panel.ticks)
    if panel.log:
        axes.set_yscale("log")
    elif not panel.spans:
        axes.set_ylim(bottom=0)


def _moments(axes: Any, panel: ChartPanel) -> None:
    """Draw a vertical line with its words: upright, or above rows of spans."""
    for mark in (m for m in panel.marks if m.row is None):
        axes.axvline(mark.at, color="black", linewidth=0.9, linestyle="--" if mark.published else ":")
        words = f"paper: {mark.words}, {mark.at:g} s" if mark.published else f"{mark.words}, {mark.at:g} s"
        style: dict[str, Any] = {"xytext": (3, -2), "textcoords": "offset points", "va": "top", "fontsize": 7}
        # Upright words stand behind the curves, which they would cover otherwise.
        style |= {"bbox": WHITE} if panel.spans else {"rotation": 90, "bbox": WHITE, "zorder": 1}
        axes.annotate(words, (mark.at, 1.0), xycoords=("data", "axes fraction"), **style)


def _line(axes: Any, line: ChartLine, looks: Looks) -> None:
    if line.drawn == "area" or not line.points:
        return
    x, y = zip(*line.points, strict=True)
    colour = _colour(looks, line.name)
    if line.published:
        style: dict[str, Any] = {"linestyle": "none", "marker": "D", "markersize": 6, "markeredgecolor": "black"}
        axes.plot(x, y, zorder=5, color=colour, label="published in the paper", clip_on=False, **style)
        return
    style = {"color": colour, "linestyle": DASHES[looks[line.name] % len(DASHES)], "linewidth": 1.4}
    if line.drawn == "marked":
        style |= {"marker": "o", "markersize": 4}
    axes.plot(x, y, label=line.name, drawstyle="steps-post" if line.drawn == "step" else "default", **style)


def _areas(axes: Any, lines: Sequence[ChartLine], looks: Looks) -> None:
    """Draw each line on top of the ones before it."""
    moments = sorted({x for line in lines for x, _ in line.points})
    floor = [0.0] * len(moments)
    for line in lines:
        at, value, given = 0, 0.0, []
        for moment in moments:
            while at < len(line.points) and line.points[at][0] <= moment:
                value, at = line.points[at][1], at + 1
            given.append(value)
        top = [a + b for a, b in zip(floor, given, strict=True)]
        style = {"facecolor": _colour(looks, line.name), "hatch": _hatch(looks, line.name), "edgecolor": "white"}
        axes.fill_between(moments, floor, top, step="post", linewidth=0.4, label=line.name, **style)
        floor = top
    if lines:
        columns = 1 + (len(lines) - 1) // 10
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=7, ncols=columns,
                    reverse=True)  # fmt: skip
        axes.margins(x=0)


def _bars(axes: Any, series: Sequence[ChartBars], looks: Looks) -> None:
    if not series:
        return
    groups = list(dict.fromkeys(group for bars in series for group in bars.values))
    width = 0.8 / len(series)
    for i, bars in enumerate(series):
        places = [groups.index(group) + (i - (len(series) - 1) / 2) * width for group in bars.values]
        place = dict(zip(bars.values, places, strict=True))
        style = {
            "color": _colour(looks, bars.name),
            "hatch": HATCHES[looks[bars.name] % len(HATCHES)],
            "edgecolor": "white",
        }
        axes.bar(places, bars.values.values(), width * 0.92, label=bars.name, linewidth=0, **style)
        if len(groups) * len(series) <= LABELLED:
            _numbers(axes, place, bars)
        if any(bars.spread.values()):
            spread = [bars.spread.get(group, 0.0) for group in bars.values]
            axes.errorbar(places, list(bars.values.values()), spread, fmt="none", ecolor="black", elinewidth=1,
                          capsize=2, label="standard deviation")  # fmt: skip
        if bars.paper:
            axes.plot(
                [place[group] for group in bars.paper], list(bars.paper.values()), linestyle="none", marker="D",
                markersize=5, color="white", markeredgecolor="black", clip_on=False, label="published in the paper",
            )  # fmt: skip
    many = len(groups) > TALL_NAMES
    axes.set_xticks(range(len(groups)), groups, rotation=90 if many else 0, fontsize=8)
    axes.set_xlim(-0.6, len(groups) - 0.4)


def _numbers(axes: Any, place: Mapping[str, float], bars: ChartBars) -> None:
    """Write each value at the foot of its bar, where no other mark is."""
    form = "{:.0f}" if max(bars.values.values()) >= 100 else "{:.3g}"
    style: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 7, "bbox": WHITE}
    for group, value in bars.values.items():
        axes.annotate(form.format(value), (place[group], 0.0), xytext=(0, 5), textcoords="offset points", **style)


def _spans(axes: Any, panel: ChartPanel, looks: Looks) -> None:
    rows = list(dict.fromkeys(span.row for span in panel.spans))
    if not rows:
        return
    for span in panel.spans:
        if span.idle:
            style = {"facecolor": "white", "edgecolor": "grey", "hatch": "\\\\\\", "label": "no job trains"}
        else:
            hatch = HATCHES[looks[span.of] % len(HATCHES)]
            style = {"facecolor": _colour(looks, span.of), "edgecolor": "white", "hatch": hatch, "label": span.of}
        axes.barh(rows.index(span.row), span.end - span.begin, left=span.begin, height=0.75, linewidth=0.3, **style)
    for mark in (m for m in panel.marks if m.row is not None):
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "black", "linewidth": 0.6}
        axes.text(mark.at, rows.index(mark.row or ""), mark.words, fontsize=6, ha="center", va="center", bbox=box)
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    named = any(mark.row is None for mark in panel.marks)
    axes.margins(x=0.01)
    axes.set_ylim(-0.6, len(rows) - (0.0 if named else 0.4))


def _legend(figure: Any, rows: Sequence[Any], looks: Looks, notes: str) -> None:
    """Name once below the figure what has no legend of its own, with the notes above."""
    handles: dict[str, Any] = {}
    for axes in rows:
        if axes.get_legend() is None:
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
    last = [name for name in ("standard deviation", "no job trains", "published in the paper") if name in handles]
    names = [*sorted((name for name in handles if name not in last), key=looks.__getitem__), *last]
    if names or notes:
        columns = LETTERS // (6 + max(map(len, names), default=0))
        figure.legend(
            [handles[name] for name in names], names, loc="outside lower left", ncols=max(1, min(len(names), columns)),
            frameon=False, fontsize=8, title=notes, title_fontsize=8, alignment="left",
        )  # fmt: skip
