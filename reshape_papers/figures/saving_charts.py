"""Builds the charts of how long saving and resuming takes (SpeCon, Figures 2 and 3) from recorded trainings. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from reshape_papers.figures.chart import Chart, ChartBars, ChartLine, ChartPanel
from reshape_papers.workloads.saving_times import BELOW_S, SIGMA_S, Row, both, mean

UNIT = "seconds to save and resume"
SHARES = (0.3, 0.7)


def by_progress(rows: Sequence[Row]) -> Chart:
    """Return the time of each stop of the VAE, by share of its training done (Figure 2)."""
    found = [row for row in rows if row["model"] == "vae"]
    lines = [
        ChartLine(row["framework"], [(100 * at, s) for at, s in zip(row["at"], both(row), strict=True)], "marked")
        for row in found
    ]
    notes = [f"{row['framework']}: {mean(both(row))}" for row in found]
    panel = ChartPanel("", "share of the training done, %", UNIT, lines=lines)
    return _chart("Saving and resuming a VAE by progress", rows, panel, (*notes, f"Paper: σ {SIGMA_S} s."))


def by_model(rows: Sequence[Row]) -> Chart:
    """Return the time of the stops at 30 and 70 % of each model (Figure 3)."""
    bars = [
        ChartBars(
            f"{framework}, {share:.0%}",
            {row["model"]: _nearest(row, share) for row in rows if row["framework"] == framework},
        )
        for framework in dict.fromkeys(row["framework"] for row in rows)
        for share in SHARES
    ]
    panel = ChartPanel("", "", UNIT, bars=[bar for bar in bars if bar.values])
    return _chart("Saving and resuming models at 30 and 70 %", rows, panel, ())


def _nearest(row: Row, share: float) -> float:
    """Return the time of the stop closest to that share: a training stops at a step that it prints."""
    return min(zip(row["at"], both(row), strict=True), key=lambda stop: abs(stop[0] - share))[1]


def _chart(title: str, rows: Sequence[Row], panel: ChartPanel, notes: Sequence[str]) -> Chart:
    where = ", ".join(dict.fromkeys(f"{row['machine']}, {row['date']}" for row in rows))
    said = (*notes, f"The paper: below {BELOW_S:g} s. Each start is cold, with all imports.")
    return Chart(title, f"Measured: trainings of the zoo on {where}", [panel], said)
