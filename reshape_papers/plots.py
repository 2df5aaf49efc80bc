"""Draws steps and curves of simulations, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reshape.output.plots import COLOURS, save
from reshape_papers.figures.chart import Points


def steps(series: Mapping[str, Points], path: Path, x: str, y: str) -> list[Path]:
    """Draw values that hold until the next one, a line per name, to `path`.svg and `path`.png; returns both."""
    figure, axes = _empty_axes(x, y)
    for i, (name, points) in enumerate(series.items()):
        if points:
            axes.step(*zip(*points, strict=True), where="post", label=name, color=COLOURS[i % len(COLOURS)])
    axes.legend(frameon=False)
    return save(figure, path)


NAMED = 10
"""So many lines can still be told apart by their names."""


def lines(series: Mapping[str, Points], path: Path, x: str, y: str, title: str) -> list[Path]:
    """Draw curves, a line per name, to `path`.svg and `path`.png; returns both. Many are drawn without names."""
    figure, axes = _empty_axes(x, y)
    for i, (name, points) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(*zip(*points, strict=True), label=name, color=colour, linewidth=1.2)
    axes.set_title(title, loc="left")
    if len(series) <= NAMED:
        axes.legend(frameon=False)
    return save(figure, path)


def _empty_axes(x: str, y: str) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
