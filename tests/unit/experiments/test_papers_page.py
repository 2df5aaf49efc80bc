"""Promise: each figure and claim of the papers has a verdict, a miss has a reason, and kept figures come out anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.papers import causes, page, reasons, results, verdicts
from experiments.papers.claims import CLAIMS
from experiments.published_figures import FIGURES, PublishedFigure, published
from tests.unit.experiments.simulated_runs import simulate

ROOT = Path(__file__).parents[3]
FIGURE = PublishedFigure("flowcon", "worst", -0.011)
DRAWN_AND_SHORT = ["elastic-w2", "specon-random-20", "flowcon-random-5"]


@pytest.mark.parametrize(
    ("paper", "ours", "words"),
    [
        (0.37, 0.57, "same sign, three quarters of the gain"),
        (0.55, 0.78, "same sign, half of the gain"),
        (0.9, 0.9, "same sign, all of the gain"),
        (0.9, 1.1, "opposite sign"),
        (0.9, 0.999, "no gain"),
        (None, 0.99, "falls, as stated"),
        (None, 1.01, "does not fall"),
    ],
)
def test_of_a_ratio_the_gain_is_compared(paper, ours, words):
    assert verdicts.of_ratio(paper, ours) == words


@pytest.mark.parametrize(
    ("paper", "ours", "words"),
    [(100, 104, "the same"), (100, 112, "near"), (0.293, 0.048, "a quarter of it"), (46, 92, "twice it"),
     (46, 50 * 46, "50 times it"), (0, 0, "the same"), (0, 0.8, "0.8 instead of none")],
)  # fmt: skip
def test_of_an_amount_the_nearest_multiple_is_named(paper, ours, words):
    assert verdicts.of_amount(paper, ours) == words


def test_the_worst_job_loses_a_multiple():
    assert verdicts.of(FIGURE, -0.48, 5) == "same sign, 44 times the loss"


def test_every_row_has_a_verdict_and_where_it_misses_a_reason():
    simulated = results.load()
    for name in results.EXPERIMENTS:
        for figure in published(name):
            if figure.paper is None and figure.against is None:
                continue
            verdict, reason = page.row(name, figure, simulated, {})[4:6]
            assert verdict != "not simulated", (name, figure)
            assert verdicts.is_settled(verdict) or reason in reasons.TEXTS, (name, figure)
    assert all(claim.verdict and claim.reason for claim in CLAIMS)
    assert all(verdicts.is_settled(claim.verdict) or claim.reason != "-" for claim in CLAIMS)


def test_what_claims_are_shown_by_exists():
    cited = [path for claim in CLAIMS for path in re.findall(r"`?((?:tests|docs|experiments)/[\w/.]+)", claim.shown_by)]
    assert cited
    assert [path for path in cited if not (ROOT / path).exists()] == []


def test_every_cause_shows_figures_of_its_experiment():
    simulated = results.load()
    for cause in causes.CAUSES:
        assert cause.figures
        assert all(results.of(simulated, cause.name, figure) for figure in cause.figures)


def test_a_live_figure_stands_beside_the_simulated_one():
    figure = next(f for f in FIGURES["elastic-w1"] if f.policy == "sidecar" and f.against == "default")
    ours = {"policy": "sidecar", "measure": figure.label, "against": "default", "ours": 0.61, "spread": 0.02}
    cells = page.row("elastic-w1", figure, results.load(), {"elastic-w1": {"seeds": 3, "figures": [ours]}})
    assert cells[page.COLUMNS.index("Live")] == "0.61 ± 0.02"


def judged(name: str, policy: str, measure: str, against: str | None, simulated: float, live: float) -> list[str]:
    """Return simulated verdict and reason, and live verdict and reason, of a published figure."""
    (figure,) = (f for f in published(name) if (f.policy, f.measure, f.against) == (policy, measure, against))
    ours = {"policy": policy, "measure": figure.label, "against": against, "spread": None}
    kept = [{name: {"seeds": 5, "figures": [{**ours, "ours": value}]}} for value in (simulated, live)]
    cells = dict(zip(page.COLUMNS, page.row(name, figure, *kept), strict=True))
    return [cells[column] for column in ("Verdict", "Reason", "Live verdict", "Live reason")]


def test_a_best_job_that_gains_a_sixth_of_the_papers_live_is_not_said_to_gain_all_of_it():
    verdict, reason, live, live_reason = judged("flowcon-random-10", "flowcon", "best", None, 0.3954, 0.067)
    assert (verdict, reason) == ("same sign, all of the gain", "-")
    assert (live, live_reason) == ("same sign, a quarter of the gain", "live-alike")


def test_a_response_time_that_rises_live_is_not_said_to_fall():
    given = judged("deadline-gang", "gang+deadlines", "mean_jct_ratio", "fifo", 0.6999, 1.4)
    assert given == ["falls, as stated", "-", "does not fall", "live-short"]


def test_no_live_figure_has_a_sentence_of_the_simulation_and_each_miss_has_one():
    assert not reasons.TEXTS.keys() & reasons.LIVE_TEXTS.keys()
    live = results.load(results.LIVE)
    for name in live:
        for figure in published(name):
            cells = dict(zip(page.COLUMNS, page.row(name, figure, results.load(), live), strict=True))
            if cells["Live"] == page.NONE:
                assert (cells["Live verdict"], cells["Live reason"]) == (page.NONE, page.NONE)
            else:
                missed = not verdicts.is_settled(cells["Live verdict"])
                assert cells["Live reason"] in reasons.LIVE_TEXTS if missed else cells["Live reason"] == page.NONE


def test_of_a_live_figure_nothing_is_claimed():
    claimed = next(f for f in published("flowcon-fixed") if f.policy == "na" and f.measure == "makespan_s")
    assert (verdicts.of(claimed, 663.0, 1), verdicts.of_live(claimed, 663.0)) == ("misses its claim", "1.5 times it")


def test_without_a_clone_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "CLONE", tmp_path)
    assert page.write({}) == []


@pytest.mark.parametrize(
    "name",
    [
        "case-study",
        "specon-fixed",
        "flowcon-fixed",
        *(pytest.param(n, marks=pytest.mark.deep) for n in DRAWN_AND_SHORT),
    ],
)
def test_the_kept_figures_come_out_anew(name):
    summary = simulate(name, results.seeds_of(name))
    assert results.kept({**summary, "paper": verdicts.compare(summary)}) == results.load()[name]
