"""Draws the figures of a published experiment under the paper's own numbers: `reshape paper NAME --plot DIR`.

Called by `simulate.py`. Which figures there are stands in `reshape_papers/figures/paper_figures.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coordinator.errors import Rejected
from reshape_papers.figures import paper_figures
from reshape_papers.workloads import NAMES


def check(experiment: str) -> None:
    """Raise `Rejected` with what to do instead if the experiment is known and no figure shows it."""
    if experiment in NAMES and not paper_figures.figures_of(experiment):
        raise Rejected(
            f"no figure of a paper shows {experiment}; draw its runs with "
            f"reshape simulate --workload {experiment} --plot DIR."
        )


def draw(experiment: str, found: Any, folder: Path) -> list[Path]:
    """Write each figure of the experiment, of what it yields, to `folder` as SVG and PNG; returns the files."""
    from reshape.output import plots
    from reshape_papers import charts

    written: list[Path] = []
    for figure in paper_figures.figures_of(experiment):
        assert figure.build is not None
        written += plots.save(charts.draw(figure.build(found)), folder / figure.file)
    return written
