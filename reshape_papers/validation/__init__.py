"""Compares published figures with ours: first the simulator alone, then the comparison policies.

Called by `reshape simulate --validate` and by tests. Every module of this package reads one folder of other people's
figures and yields rows; docs/reference/validation.md stated first which rows must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from reshape_papers.validation import accuracy_curves, elasticflow_figures, gavel_figures, pollux_figures, voda_figures
from reshape_papers.validation.rows import ComparedFigure
from simulator.scenario import NoWorkload

SOURCES: Mapping[str, Callable[[Path], Iterable[ComparedFigure]]] = {
    "voda": voda_figures.rows,
    "pollux": pollux_figures.rows,
    "elasticflow": elasticflow_figures.rows,
    "gavel": gavel_figures.rows,
    "curves": accuracy_curves.rows,
}
"""By name, in the order of the table: from the folder that RESHAPE_DATA names to rows."""


def validate(data: Path | None, sources: Iterable[str] = SOURCES) -> dict[str, Any]:
    """Return all rows of these sources under `rows`; all sources together take minutes.

    Raises `NoWorkload` with a sentence if the data is missing.
    """
    if data is None:
        raise NoWorkload("validation needs what others published; name its folder with --data or RESHAPE_DATA.")
    return {"rows": [row.as_document() for source in sources for row in SOURCES[source](data)]}
