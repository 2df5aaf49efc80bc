"""Sets what the six runs gave beside the paper's figure and its simulation, in the shape that docs/papers.md reads.

Pure. The paper prints no response time: Figure 4 is a picture, in which they fall for all three algorithms. So a ratio
is compared, of the response times of the jobs that both sides have done.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.cluster_deadlines.runs import ALGORITHMS, ClusterOutcome
from reshape.output.tables import NONE
from reshape_papers.papers import results
from reshape_papers.papers.results import Figures, Kept, KeptExperiment
from reshape_papers.published_figures import PublishedFigure, published

HEAD = ("ALGORITHM", "MEASURE", "PAPER", "SIMULATED", "ON VOLCANO")


def figures(outcomes: Sequence[ClusterOutcome]) -> Figures:
    """Return of each algorithm that ran the response times in seconds, and their ratio where both sides ran."""
    found = {f"deadline-{name}": _of(name, outcomes) for name in ALGORITHMS}
    return {name: one for name, one in found.items() if one["figures"]}


def _of(algorithm: str, outcomes: Sequence[ClusterOutcome]) -> KeptExperiment:
    sides = [{each.seed: each for each in outcomes if (each.algorithm, each.deadlines) == (algorithm, side)}
             for side in (False, True)]  # fmt: skip
    names = algorithm, f"{algorithm}+deadlines"
    rows = [_kept(name, "art_s", None, [each.art_s for each in side.values()])
            for name, side in zip(names, sides, strict=True)]  # fmt: skip
    pairs = [(sides[0][seed], sides[1][seed]) for seed in sides[0] if seed in sides[1]]
    rows.append(_kept(names[1], "mean_jct_ratio", algorithm, [_ratio(*pair) for pair in pairs]))
    return {"seeds": max(map(len, sides)), "figures": [row for row in rows if row is not None]}


def _ratio(without: ClusterOutcome, having: ClusterOutcome) -> float | None:
    both = without.response_s.keys() & having.response_s.keys()
    before, now = (sum(one.response_s[job] for job in both) for one in (without, having))
    return now / before if both else None


def _kept(policy: str, measure: str, against: str | None, values: Sequence[float | None]) -> Kept | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    spread = float(f"{statistics.stdev(known):.4g}") if len(known) > 1 else None
    ours = float(f"{statistics.fmean(known):.4g}")
    return {"policy": policy, "measure": measure, "against": against, "ours": ours, "spread": spread}


def beside(found: Figures) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each figure that the paper has, in the order of HEAD."""
    simulated = results.load()
    for name in found:
        for figure in published(name):
            if really := results.kept_figure(found, name, figure):
                shown = _cell(results.kept_figure(simulated, name, figure), figure), _cell(really, figure)
                against = f" to {figure.against}" if figure.against else ""
                yield figure.policy, figure.label + against, _paper(figure), *shown


def _paper(figure: PublishedFigure) -> str:
    return NONE if figure.against is None else "falls" if figure.paper is None else f"{figure.paper:g}"


def _cell(kept: Kept | None, figure: PublishedFigure) -> str:
    if kept is None:
        return NONE
    unit = "" if figure.against else " s"
    return f"{kept['ours']:.3g}{unit}" + (f" ± {kept['spread']:.2g}" if kept["spread"] else "")
