"""Holds how long stopping and restarting trainings of the zoo took (SpeCon, Figures 2 and 3), and compares it.

`reshape record --saving --into` writes `saving_times.json`, on the machine and date that each row names. Called by
`reshape paper`, by `claims.py` and by the figures.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

EXPERIMENT = "specon-save-resume"
FILE = Path(__file__).with_suffix(".json")
BELOW_S, SIGMA_S = 5.0, 1.43
"""What the paper prints: less than 5 s to save and resume, with this standard deviation over the shares of a VAE."""
HEAD = ("MODEL", "FRAMEWORK", "STOPS", "SAVE", "RESUME", "BOTH", "BOTH, CPU TIME", "LOAD", "PAPER")

Row = Mapping[str, Any]


@cache
def rows() -> Sequence[Row]:
    """Return the trainings that were stopped, in the order of models and frameworks."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8")))


def both(row: Row, of: str = "_s") -> list[float]:
    """Return save and resume together for each stop, in seconds: wall time, or with `_cpu_s` CPU time."""
    return [save + resume for save, resume in zip(row[f"save{of}"], row[f"resume{of}"], strict=True)]


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of one training under `HEAD`."""
    clock, cpu = both(row), both(row, "_cpu_s")
    paper = f"< {BELOW_S:g} s" + (f", σ {SIGMA_S}" if row["model"] == "vae" else "")
    return (
        row["model"], row["framework"], f"{len(clock)}", mean(row["save_s"]), mean(row["resume_s"]), mean(clock),
        mean(cpu), f"{row['load']:g}", paper,
    )  # fmt: skip


def mean(values: Sequence[float]) -> str:
    """Return mean and standard deviation as text."""
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f} s"
