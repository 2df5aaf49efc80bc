"""What was published about the workloads, to be printed beside what came out here.

A figure with `within` or `at_most` must be met; any other is a trend, and of a trend only the sign may be
claimed (`algorithms.md` 5.7). Called by `reshape paper` and by tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEED_004 = "seed 004"
PROTOTYPE = "prototype of the resolved algorithms, performance.md section 3"
FLOOR_SEEDS = 20  # the floors are said of seeds 0 to 19


@dataclass(frozen=True, slots=True)
class Figure:
    """One published number. `against` names a baseline where the measure is a ratio to it."""

    policy: str
    measure: str
    paper: float
    against: str | None = None
    within: float | None = None  # as a share of the paper's figure
    at_most: float | None = None  # compared as printed, with `places` decimals
    places: int = 2
    source: str = SEED_004

    def ours(self, summary: Mapping[str, Any]) -> float | None:
        """None where that policy was not simulated."""
        rows = summary["rows"] if self.against is None else summary["comparisons"]
        for row in rows:
            its_own = row["seed"] is None if self.against is None else row["against"] == self.against
            if row["policy"] == self.policy and its_own:
                return float(row[self.measure])
        return None

    def holds(self, ours: float, seeds: int) -> bool | None:
        """None where there is nothing to hold: a trend of an absolute figure, or a floor with other seeds."""
        if self.within is not None:
            return abs(ours - self.paper) <= self.within * abs(self.paper)
        if self.at_most is not None:
            return round(ours, self.places) <= self.at_most if seeds == FLOOR_SEEDS else None
        return ours < 1.0 if self.against is not None else None

    @property
    def claim(self) -> str:
        if self.within is not None:
            return f"within {self.within:.0%}"
        return "trend" if self.at_most is None else f"at most {self.at_most}, seeds 0 to {FLOOR_SEEDS - 1}"


def compare(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Paper, ours and the difference, for every figure of that workload whose policy was simulated."""
    found = [(figure, figure.ours(summary)) for figure in FIGURES[summary["workload"]]]
    seeds = len(summary["seeds"])
    return [
        {
            "policy": figure.policy,
            "measure": figure.measure,
            "against": figure.against,
            "paper": figure.paper,
            "ours": ours,
            "difference": ours - figure.paper,
            "relative": (ours - figure.paper) / figure.paper if figure.paper else None,
            "claim": figure.claim,
            "holds": figure.holds(ours, seeds),
            "source": figure.source,
        }
        for figure, ours in found
        if ours is not None
    ]


def _evaluation(default: Sequence[float], termination: Sequence[float], overheads: Sequence[float]) -> list[Figure]:
    """Cuts of makespan and mean JCT against both baselines; overhead of termination and of the sidecar (Table VIII)."""
    ratios = [
        Figure("sidecar", measure, round(1 - cut, 2), against)
        for against, cuts in (("default", default), ("termination", termination))
        for measure, cut in zip(("makespan_ratio", "mean_jct_ratio"), cuts, strict=True)
    ]
    shares = zip(("termination", "sidecar"), overheads, strict=True)
    return [*ratios, *(Figure(policy, "overhead_share", share) for policy, share in shares)]


def _floor(measure: str, paper: float, at_most: float, against: str | None = None, places: int = 2) -> Figure:
    return Figure("sidecar", measure, paper, against, at_most=at_most, places=places, source=PROTOTYPE)


FIGURES: Mapping[str, Sequence[Figure]] = {
    "case-study": [
        Figure("default", "makespan_s", 1249.0, within=0.03),
        Figure("termination", "makespan_s", 1143.0, within=0.03),
        Figure("sidecar", "makespan_s", 845.0, within=0.03),
        Figure("default", "mean_jct_s", 851.0),
        Figure("termination", "mean_jct_s", 889.0),
        Figure("sidecar", "mean_jct_s", 678.5),
    ],
    "workload-s": [
        _floor("makespan_over_lp", 1.06, 1.06),
        _floor("makespan_ratio", 0.64, 0.64, "default"),
        _floor("makespan_ratio", 0.91, 0.91, "termination"),
        _floor("jct_over_bound", 1.70, 1.70),
        _floor("mean_jct_ratio", 0.572, 0.575, "default", places=3),
        _floor("mean_jct_ratio", 0.81, 0.81, "termination"),
        Figure("default", "makespan_s", 22364.0, source=PROTOTYPE),
        Figure("default", "mean_jct_s", 6074.0, source=PROTOTYPE),
        Figure("termination", "makespan_s", 15700.0, source=PROTOTYPE),
        Figure("termination", "mean_jct_s", 4292.0, source=PROTOTYPE),
        Figure("sidecar", "makespan_s", 14255.0, source=PROTOTYPE),
        Figure("sidecar", "mean_jct_s", 3475.0, source=PROTOTYPE),
    ],
    "elastic-w1": [
        *_evaluation((0.45, 0.63), (0.17, 0.27), (0.293, 0.089)),
        Figure("default", "pending_at_last_arrival", 12.0),
        Figure("termination", "pending_at_last_arrival", 3.0),
        Figure("sidecar", "pending_at_last_arrival", 0.0),
        Figure("termination", "adds", 46.0),
        Figure("sidecar", "adds", 16.0),
        Figure("termination", "removes", 0.0),
    ],
    "elastic-w2": _evaluation((0.34, 0.58), (0.20, 0.37), (0.219, 0.067)),
    "elastic-w3": _evaluation((0.42, 0.61), (0.17, 0.35), (0.271, 0.076)),
    "elastic-w4": _evaluation((0.36, 0.55), (0.18, 0.36), (0.286, 0.083)),
}
