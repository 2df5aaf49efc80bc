"""Keeps the figures of every experiment of the papers, simulated and live, as committed data.

`reshape paper all` writes `simulated.json`; `live.json`, of the same form, is for experiments on real processes.
`page.py` turns both into docs/papers.md. Called by it, by `reshape paper` and by tests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from reshape_papers.published_figures import FIGURES, PublishedFigure, original, published
from reshape_papers.workloads import NAMES, build, deadline_traces, is_drawn

SIMULATED, LIVE = "simulated.json", "live.json"
SEEDS = 20
"""Of every drawn experiment, as many as `reshape paper NAME` takes by itself."""
OF_NO_PAPER = frozenset({"workload-s", *deadline_traces.NAMES})
EXPERIMENTS = (
    *(n for n in FIGURES if n not in OF_NO_PAPER),
    *(n for n in NAMES if n not in FIGURES and original(n) in FIGURES),
)
"""Workloads that are experiments of the four papers; the others have floors of ours, or ElasticFlow's jobs."""
OF_ONE_NIGHT = (
    *(name for name in EXPERIMENTS if name in FIGURES and name.partition("-")[0] in ("specon", "flowcon")),
    "elastic-w1",
)
"""What `reshape paper all --live` trains: SpeCon and FlowCon, and W1 on the printed speeds."""


class Kept(TypedDict):
    """One figure: its mean over the seeds (or runs), and the standard deviation of a single one."""

    policy: str
    measure: str
    against: str | None
    ours: float
    spread: float | None


class KeptExperiment(TypedDict):
    """Figures of one experiment, and the number of seeds (or runs) over which they are means."""

    seeds: int
    figures: list[Kept]


Figures = Mapping[str, KeptExperiment]


def seeds_of(name: str) -> int:
    """Return the number of seeds of an experiment in `reshape paper all`; 1 if nothing is drawn."""
    return SEEDS if is_drawn(name) else 1


def policies_of(name: str, data: Path | None = None) -> list[str]:
    """Return the policies of an experiment in their order: the workload's, and others of which figures are kept."""
    own = (setup.name for setup in build(name, 0, data).policy_setups)
    return list(dict.fromkeys([*own, *(figure.policy for figure in published(name))]))


def kept(summary: Mapping[str, Any]) -> KeptExperiment:
    """Return what is kept of a summary that has the comparison of `verdicts` under "paper"."""
    figures = [
        Kept(
            policy=row["policy"], measure=row["measure"], against=row["against"], ours=_short(row["ours"]),
            spread=None if row["spread"] is None else _short(row["spread"]),
        )
        for row in summary["paper"]
    ]  # fmt: skip
    return {"seeds": len(summary["seeds"]), "figures": figures}


def load(name: str = SIMULATED) -> Figures:
    """Return the figures in `simulated.json` or `live.json`; empty if there is no such file."""
    path = Path(__file__).parent / name
    found: Figures = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def as_text(figures: Figures) -> str:
    """Return the content of the file, one figure per line."""
    parts = []
    for name, experiment in figures.items():
        lines = ",\n".join(f"    {json.dumps(figure)}" for figure in experiment["figures"])
        parts.append(f'  "{name}": {{"seeds": {experiment["seeds"]}, "figures": [\n{lines}\n  ]}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def kept_figure(figures: Figures, name: str, wanted: PublishedFigure) -> Kept | None:
    """Return what is kept for a published figure; None if that has not run."""
    experiment = figures.get(name)
    for figure in experiment["figures"] if experiment else ():
        if (figure["policy"], figure["measure"], figure["against"]) == (wanted.policy, wanted.label, wanted.against):
            return figure
    return None


def value(figures: Figures, name: str, policy: str, measure: str) -> float:
    """Return our figure of an experiment, not against a baseline; NaN if it has not run."""
    experiment = figures.get(name)
    kept = experiment["figures"] if experiment else ()
    return next(
        (f["ours"] for f in kept if (f["policy"], f["measure"], f["against"]) == (policy, measure, None)), math.nan
    )


def _short(number: float) -> float:
    """Round to four significant digits: another order of summation changes the sixteenth, though all else is equal."""
    return float(f"{round(number, 9):.4g}")
