"""Draws Gantt charts as SVG and PNG: who trained on which GPU when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.dashboard.bars import Bar

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000")  # Okabe-Ito


LETTER = 0.0085  # width of a letter of a note, as a share of the whole time shown


def _levels(notes: Sequence[tuple[float, str]], span: float) -> list[tuple[float, str, int]]:
    """Return each note with a height at which it covers no earlier one."""
    ends: list[float] = []
    placed = []
    for at, words in sorted(notes):
        level = next((i for i, end in enumerate(ends) if end <= at), len(ends))
        ends[level:level] = [0.0] if level == len(ends) else []
        ends[level] = at + span * LETTER * (len(words) + 2)
        placed.append((at, words, level))
    return placed


FEW = 20
"""Of so many rows each can have half an inch."""


def gantt(
    bars: list[Bar], path: Path, title: str, notes: Sequence[tuple[float, str]] = (), colours: str = "job"
) -> list[Path]:
    """Draw GPUs over time to `path`.svg and `path`.png, with `notes` above; returns both.

    `colours`: the word before what a colour stands for.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    gpus = sorted({bar.gpu for bar in bars}, reverse=True)
    jobs = sorted({bar.job for bar in bars})
    colour = {job: COLOURS[i % len(COLOURS)] for i, job in enumerate(jobs)}
    row = {gpu: i for i, gpu in enumerate(gpus)}
    height = (2.4 if notes else 1.2) + (0.5 if len(gpus) <= FEW else 0.25) * len(gpus)
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.add_subplot()
    axes.margins(y=min(0.05, 0.5 / max(1, len(gpus))))
    for bar in sorted(bars, key=lambda b: b.kind == "stopped"):
        style: dict[str, Any] = {"color": colour[bar.job]}
        if bar.kind == "reserved":
            style = {"facecolor": "white", "edgecolor": colour[bar.job], "hatch": "///"}
        elif bar.kind == "stopped":
            style = {"color": "white", "alpha": 0.75}
        axes.barh(row[bar.gpu], bar.end - bar.begin, left=bar.begin, height=0.8, **style)
    axes.set_yticks(range(len(gpus)), gpus)
    for at, words, level in _levels(notes, max((bar.end for bar in bars), default=1.0)):
        axes.axvline(at, color="black", linewidth=0.8, linestyle=":")
        axes.text(at, len(gpus) - 0.38 + 0.4 * level, f" {words}", fontsize=8)
    axes.set_xlabel("seconds since the first job was submitted")
    figure.suptitle(title, x=0.01, ha="left")
    axes.spines[["top", "right"]].set_visible(False)
    # Of more jobs than colours a legend would say nothing.
    legend = [Patch(color=colour[job], label=f"{colours} {job}") for job in jobs] if len(jobs) <= len(COLOURS) else []
    if any(bar.kind == "reserved" for bar in bars):
        legend.append(Patch(facecolor="white", edgecolor="grey", hatch="///", label="reserved"))
    if legend:
        figure.legend(handles=legend, loc="outside lower right", ncols=len(legend), frameon=False)
    return save(figure, path)


def save(figure: Any, path: Path) -> list[Path]:
    """Write a figure to `path`.svg and `path`.png; returns both."""
    # Not `with_suffix`: a name may hold a dot.
    written = [path.with_name(f"{path.name}.{kind}") for kind in ("svg", "png")]
    for file in written:
        figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)
    return written
