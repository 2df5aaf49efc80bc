"""Says in words how close a figure of ours is to a paper's; the rules are in docs/papers.md.

Called by `reshape paper` and by `page.py`. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reshape_papers import published_figures
from reshape_papers.published_figures import PublishedFigure

RULES = (
    "For a ratio to a baseline, the gain is compared, 1 − ratio: 0.57 where the paper has 0.37 is a gain of 0.43 "
    "where it has 0.63, so *same sign, three quarters of the gain*. The verdict names the nearest of a tenth, a "
    "quarter, half, three quarters, all, 1.5 times, twice, and so on. *No gain*: less than a twentieth of the paper's. "
    "*Opposite sign*: worse than the baseline.",
    "Shares by which single jobs gain or lose (`best`, `worst`) are compared in the same way, and so is the average "
    "share or time by which jobs end earlier or later (`mean_faster`, `mean_slower`).",
    "A time, a count or a share: *the same* within 5 %, *near* within 15 %; otherwise the nearest of the same "
    "multiples.",
    "A figure that we claim: *as claimed*, or *misses its claim*.",
    "If the paper states only a direction: *falls, as stated*, or *does not fall*.",
    "*Within chance*: the gain or loss is less than twice its standard error, which is the standard deviation of one "
    "draw over the square root of their number, so these draws cannot tell it from none.",
    "Simulated and live figures each have their own verdict. A claim is about the simulation.",
)
GAINS = frozenset({"best", "worst", "mean_gain", "mean_faster", "mean_slower", "mean_faster_s", "mean_slower_s"})
"""Measures that are gains themselves: shares of a job's completion time, or seconds of it."""

STEPS: Sequence[tuple[float, str]] = (
    (0.25, "a quarter of"), (0.5, "half of"), (0.75, "three quarters of"), (1.0, "all of"),
    (1.5, "1.5 times"), (2.0, "twice"), (3.0, "3 times"),
)  # fmt: skip
CHANCE = "within chance"
ERRORS = 2.0
"""A gain is told from none if it is so many times its standard error."""
SETTLED = ("as claimed", "the same", "near", "same sign, all of", "falls", "by test", "shown")
"""Verdicts that need no reason begin with one of these."""


def compare(summary: Mapping[str, Any], figures: Sequence[PublishedFigure] | None = None) -> list[dict[str, Any]]:
    """Return `published_figures.compare` of these figures, by default the workload's, with a verdict in each row."""
    wanted = published_figures.published(summary["workload"]) if figures is None else figures
    found = [figure for figure in wanted if figure.ours(summary) is not None]
    rows = published_figures.compare(summary, found)
    seeds = len(summary["seeds"])
    return [
        {**row, "verdict": verdict_on(figure, row["ours"], seeds, row["spread"])}
        for figure, row in zip(found, rows, strict=True)
    ]


def verdict_on(figure: PublishedFigure, ours: float, seeds: int, spread: float | None = None) -> str | None:
    """Return the verdict on a figure; None if the paper has neither a figure nor a direction.

    `ours`: the mean over so many `seeds`; `spread`: the standard deviation of one, where there are several.
    """
    if figure.is_ours:
        return None
    if figure.within is not None or figure.at_most is not None:
        held = figure.holds(ours, seeds)
        if held is False:  # None: a floor is claimed only for its own seeds
            return "misses its claim"
        if held and (figure.within is not None or figure.paper == figure.at_most):
            return "as claimed"  # one that is only claimed to do no harm is compared with the paper's gain, too
    error = spread / math.sqrt(seeds) if spread else 0.0
    if figure.against is not None:
        return _beyond_chance(of_ratio(figure.paper, ours), 1.0 - ours, error)
    if figure.paper is None:
        return None
    if figure.measure in GAINS:
        return _beyond_chance(of_gain(figure.paper, ours), ours, error)
    return of_amount(figure.paper, ours)


def _beyond_chance(verdict: str, gain: float, error: float) -> str:
    """Return a verdict that says of no gain what its standard error leaves open."""
    says_that_there_is_one = not verdict.startswith(("no ", "does not"))
    return CHANCE if says_that_there_is_one and abs(gain) < ERRORS * error else verdict


def live_verdict_on(figure: PublishedFigure, ours: float, runs: int, spread: float | None = None) -> str | None:
    """Return the verdict on a live figure, for which nothing is claimed."""
    return verdict_on(replace(figure, within=None, at_most=None), ours, runs, spread)


def of_ratio(paper: float | None, ours: float) -> str:
    """Return the verdict on a ratio to a baseline, below 1 if better."""
    if paper is None:
        return "falls, as stated" if ours < 1.0 else "does not fall"
    return of_gain(1.0 - paper, 1.0 - ours)


def of_gain(paper: float, ours: float) -> str:
    """Return the verdict on a gain: a share by which something became shorter; negative for a loss."""
    noun = "gain" if paper > 0 else "loss"
    if not paper:
        return of_amount(paper, ours)
    share = ours / paper
    if abs(share) < 0.05:
        return f"no {noun}"
    return "opposite sign" if share < 0 else f"same sign, {_times(share)} the {noun}"


def of_amount(paper: float, ours: float) -> str:
    """Return the verdict on a time, a count or a share."""
    if not paper:
        return "the same" if not round(ours, 6) else f"{ours:.2g} instead of none"
    share = ours / paper
    if abs(share - 1) <= 0.05:
        return "the same"
    if abs(share - 1) <= 0.15:
        return "near"
    return ("less" if share < 1 else "more") if _times(share) == "all of" else f"{_times(share)} it"


def is_settled(verdict: str) -> bool:
    """Return whether a verdict needs no reason."""
    return verdict.startswith(SETTLED)


def _times(share: float) -> str:
    """Return the nearest multiple in words."""
    if share < 0.125:
        return "a tenth of"
    return f"{share:.0f} times" if share >= 3.5 else min(STEPS, key=lambda step: abs(step[0] - share))[1]
