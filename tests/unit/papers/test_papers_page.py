"""Promise: each figure and claim of the papers has a verdict, a miss has a reason, and kept figures come out anew."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from reshape_papers.papers import causes, claims, page, reasons, results, verdicts
from reshape_papers.papers.claims import CLAIMS
from reshape_papers.published_figures import FIGURES, PublishedFigure, published
from reshape_papers.run import compare
from reshape_papers.workloads import build
from tests.unit.papers.simulated_runs import simulate

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
    [
        (100, 104, "the same"),
        (100, 112, "near"),
        (0.293, 0.048, "a quarter of it"),
        (46, 92, "twice it"),
        (46, 50 * 46, "50 times it"),
        (0, 0, "the same"),
        (0, 0.8, "0.8 instead of none"),
    ],
)
def test_of_an_amount_the_nearest_multiple_is_named(paper, ours, words):
    assert verdicts.of_amount(paper, ours) == words


def test_the_worst_job_loses_a_multiple():
    assert verdicts.verdict_on(FIGURE, -0.48, 5) == "same sign, 44 times the loss"


@pytest.mark.parametrize(
    ("ours", "spread", "seeds", "words"),
    [
        (0.975, 0.045, 3, "within chance"),
        (0.975, 0.045, 20, "same sign, all of the gain"),
        (1.02, 0.026, 3, "within chance"),
        (1.02, 0.026, 20, "opposite sign"),
        (1.0, 0.045, 3, "no gain"),
        (0.975, None, 1, "same sign, all of the gain"),
    ],
)
def test_a_gain_that_the_draws_do_not_tell_from_none_is_not_claimed(ours, spread, seeds, words):
    """The live makespan of FlowCon's ten jobs was called all of the paper's gain: 0.975 ± 0.045 of three draws."""
    figure = PublishedFigure("flowcon", "makespan_ratio", 0.975, "na")
    assert verdicts.live_verdict_on(figure, ours, seeds, spread) == words


def test_a_direction_and_the_worst_job_are_told_from_none_alike():
    falls = PublishedFigure("deadline", "mean_jct_ratio", None, "gang")
    assert [verdicts.verdict_on(falls, 0.98, 20, sd) for sd in (0.056, 0.01)] == ["within chance", "falls, as stated"]
    assert verdicts.verdict_on(FIGURE, -0.009, 3, 0.047) == "within chance"


def test_the_planner_stands_beside_the_papers_policies_and_no_paper_is_said_to_have_a_figure_of_it():
    figure = next(f for f in published("elastic-w1") if f.policy == "planner" and f.against == "default")
    ours = {"policy": "planner", "measure": figure.label, "against": "default", "ours": 0.53, "spread": 0.02}
    kept = {"elastic-w1": {"seeds": 3, "figures": [ours]}}
    cells = page.row("elastic-w1", figure, kept, kept)
    assert cells == (
        "`planner`",
        "`makespan_ratio to default`",
        "-",
        "0.53 ± 0.02",
        "-",
        "-",
        "0.53 ± 0.02",
        "-",
        "-",
    )
    assert results.policies_of("elastic-w1") == ["default", "termination", "sidecar-printed", "sidecar", "planner"]
    assert results.policies_of("flowcon-fixed") == ["na", "flowcon"]


def test_noise_of_a_loss_is_the_same_each_time_and_as_large_as_it_says():
    cause = next(cause for cause in causes.CAUSES if cause.name == "flowcon-noise")
    smooth, noisy, again = (w.jobs[1].cpu.curve for w in (build(cause.experiment, 4), cause.draw(4), cause.draw(4)))
    shares = [number / 400 for number in range(401)]
    off = [noisy(share) - smooth(share) for share in shares]
    assert off == [again(share) - smooth(share) for share in shares]
    assert statistics.stdev(off) == pytest.approx(0.02 * (smooth(0) - smooth(1)), rel=0.15)


@pytest.mark.parametrize(
    ("paper", "ours", "words"),
    [(0.975, 1.0, "no gain"), (None, 1.0, "does not fall"), (0.975, 1.01, "misses its claim")],
)
def test_a_limit_that_only_does_no_harm_is_not_called_the_papers_gain(paper, ours, words):
    figure = PublishedFigure("flowcon", "makespan_ratio", paper, "na", at_most=1.005, places=3, seeds=20)
    assert verdicts.verdict_on(figure, ours, 20) == words


def test_the_row_of_figure_2_is_read_off_what_w1_runs_on(monkeypatch):
    row = next(claim for claim in CLAIMS if (claim.paper, claim.where) == (claims.SIDECAR, "Figure 2"))
    assert (row.figure, row.simulated, row.verdict) == ("1 / 1.7 / 2.4", "1 / 1.7 / 2.4 / 1.91 to 2.5", "the same")
    monkeypatch.setattr(claims, "build", lambda name, seed: build(f"{name}-measured", seed))
    measured = claims.figure_2()
    assert measured.simulated == "1 / 1.73 to 1.87 / 2.67 to 3.36 / 3.11 to 5.63"
    assert measured.verdict == "the same / near / 1.5 times it"


def test_averages_of_table_viii_are_those_of_w1_to_w4():
    def of(name, termination, ours):
        rows = {"termination": termination, "sidecar-printed": ours}
        figures = [{"policy": p, "measure": "overhead_share", "against": None, "ours": s} for p, s in rows.items()]
        return {f"elastic-w{name}": {"seeds": 20, "figures": figures}}

    simulated = of(1, 0.2, 0.1) | of(2, 0.3, 0.06) | of(3, 0.27, 0.08) | of(4, 0.31, 0.08)
    row = claims.overheads(simulated, of(1, 0.2, 0.1))
    assert (row.figure, row.simulated, row.verdict) == ("26.7 / 7.9 %", "27 / 8 %", "the same / the same")
    assert (row.live, row.live_verdict) == ("-", "-"), "of one of the four no average is known"
    row = claims.overheads(simulated, simulated | of(1, 0.02, 0.1))
    assert (row.live, row.live_verdict, row.live_reason) == (
        "22.5 / 8 %",
        "three quarters of it / the same",
        "live-length",
    )


def test_response_times_have_a_verdict_in_each_column():
    def of(binpack, gang):
        times = {"binpack": binpack, "gang": gang, "task-topology": gang}
        return {
            f"deadline-{name}": {
                "seeds": 3,
                "figures": [{"policy": name, "measure": "art_s", "against": None, "ours": seconds}],
            }
            for name, seconds in times.items()
        }

    row = claims.binpack(of(567.0, 570.0), of(400.0, 300.0))
    assert (row.verdict, row.live, row.live_verdict) == (
        "no difference",
        "binpack 400, gang 300, task-topology 300",
        "shown",
    )
    assert claims.binpack(of(567.0, 570.0), {}).live_verdict == "-"


def test_what_stands_open_in_the_texts_is_said_to_be_open():
    left = " ".join(claim.what for claim in CLAIMS if claim.verdict == claims.OPEN)
    assert all(words in left for words in ("stragglers", "parameter servers", "block I/O"))
    assert all(claim.reason != "-" for claim in CLAIMS if claim.verdict == claims.OPEN)


def _seconds(workload):
    profiles = workload.policy_setups[-1].profiles
    return {(kind, gpu, n): s.seconds for (kind, gpu), of in profiles.speeds.items() for n, s in of.items()}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("w1-8-as-2", {8}),
        ("w1-8-as-4", {8}),
        ("w1-by-batch", {2, 4, 8}),
        ("w1-measured", {2, 4, 8}),
        ("w1-table-iv", {1, 2, 4, 8}),
        ("w1-smallest-first", set()),
        ("w1-blind", set()),
        ("w2-measured-blind", set()),
    ],
)
def test_a_cause_changes_speeds_only_where_it_says_so(name, counts):
    cause = next(cause for cause in causes.CAUSES if cause.name == name)
    before, after = build(cause.experiment, 1), cause.draw(1)
    was, now = _seconds(before), _seconds(after)
    assert {key[2] for key in was if now[key] != was[key]} == counts
    assert not [key for key in was if key[0] == "6" and now[key] != was[key]], "type 6 is no ResNet on ImageNet"
    if name != "w1-table-iv":
        assert after.jobs == before.jobs


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("w1-smallest-first", "default"),
        ("w1-in-order", "default"),
        ("w1-blind", "termination"),
        ("w2-blind", "termination"),
    ],
)
def test_a_cause_of_one_policy_leaves_the_others_as_they_are(name, policy):
    cause = next(cause for cause in causes.CAUSES if cause.name == name)
    rows = [
        {run.policy: run.row for run in compare(workload, ("default", "termination"), bounded=False)}
        for workload in (build(cause.experiment, 1), cause.draw(1))
    ]
    assert {p for p in rows[0] if rows[0][p] != rows[1][p]} == {policy}


def test_every_row_has_a_verdict_and_where_it_misses_a_reason():
    simulated = results.load()
    for name in results.EXPERIMENTS:
        for figure in published(name):
            if figure.paper is None and figure.against is None:
                continue
            verdict, reason = page.row(name, figure, simulated, {})[4:6]
            assert verdict != "not simulated", (name, figure)
            if figure.is_ours:
                assert (verdict, reason) == (page.NONE, page.NONE)
                continue
            assert verdicts.is_settled(verdict) or reason in reasons.TEXTS, (name, figure)
    assert all(claim.verdict and claim.reason for claim in CLAIMS)
    assert all(verdicts.is_settled(claim.verdict) or claim.reason != "-" for claim in CLAIMS)


def test_what_claims_are_shown_by_exists():
    a_file = r"`?((?:tests|docs|reshape_papers)/[\w/.]+)"
    cited = [path for claim in CLAIMS for path in re.findall(a_file, claim.shown_by)]
    assert cited
    assert [path for path in cited if not (ROOT / path).exists()] == []


def test_every_cause_shows_figures_of_its_experiment():
    simulated = results.load()
    for cause in causes.CAUSES:
        assert cause.figures
        assert all(results.kept_figure(simulated, cause.name, figure) for figure in cause.figures)


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
                missed = cells["Live verdict"] != page.NONE and not verdicts.is_settled(cells["Live verdict"])
                assert cells["Live reason"] in reasons.LIVE_TEXTS if missed else cells["Live reason"] == page.NONE


def test_of_a_live_figure_nothing_is_claimed():
    claimed = next(f for f in published("flowcon-fixed") if f.policy == "na" and f.measure == "makespan_s")
    assert (verdicts.verdict_on(claimed, 663.0, 1), verdicts.live_verdict_on(claimed, 663.0, 1)) == (
        "misses its claim",
        "1.5 times it",
    )


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
    summary = simulate(name, results.seeds_of(name), results.policies_of(name))
    assert results.kept({**summary, "paper": verdicts.compare(summary)}) == results.load()[name]
