"""`reshape simulate` and `reshape paper`: what they print, and how they end."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from reshape_papers.figures.chart import at_once, distribution
from reshape_papers.papers import causes, page, results, verdicts


def test_json_is_one_object_with_a_row_per_policy_and_seed_and_their_mean(reshape: Any) -> None:
    done = reshape("simulate", "--workload", "workload-s", "--policy", "sidecar", "--seeds", "2", "-o", "json")
    assert done.code == 0
    assert [row["seed"] for row in done.doc["rows"]] == [0, 1, None]
    assert {"policy", "makespan_s", "mean_jct_s", "p99_jct_s", "makespan_over_lp"} <= set(done.doc["rows"][0])
    assert done.doc["emulated"]


def test_csv_has_the_same_rows_under_their_names(reshape: Any) -> None:
    done = reshape("simulate", "--workload", "case-study", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["policy"], row["seed"]) for row in rows][:2] == [("default", "0"), ("default", "")]
    assert float(rows[0]["makespan_s"]) == 1249


def test_a_table_compares_the_policies_and_names_what_is_fitted(reshape: Any) -> None:
    done = reshape("simulate", "--workload", "case-study")
    assert "1249 s" in done.out
    assert "fitted: the five overheads" in done.out
    assert "emulated: all GPUs" in done.out


def test_o_before_the_verb_counts_too(reshape: Any) -> None:
    assert reshape("-o", "json", "simulate", "--workload", "case-study").doc["workload"] == "case-study"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["simulate", "--workload", "nix"], "take one of case-study"),
        (["simulate", "--workload", "case-study", "--policy", "best"], "take one of default"),
        (["simulate", "--workload", "deadline-traces-pollux"], "set RESHAPE_DATA"),
        (["paper", "nix"], "take one of case-study"),
        (["simulate", "--workload", ""], "no workload ''"),
        (["simulate", "--workload", "specon-fixed", "--policy", "tiresias"], "take one of ds, specon"),
        (["simulate", "--workload", "case-study", "--plot", "/dev/null/charts"], "name another folder"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_one_sentence(reshape: Any, arguments: list[str], says: str) -> None:
    done = reshape(*arguments)
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Name a --workload"),
        (["--workload", "case-study", "--jobs", "3"], "Name a --workload"),
        (["--workload", "case-study", "--seeds", "0"], "not in the range"),
        (["--workload", "case-study", "--node-mtbf", "900"], "Give both --node-mtbf and --node-repair"),
        (["--workload", "case-study", "--node-mtbf", "nan", "--node-repair", "9"], "not a finite number"),
        (["--workload", "case-study", "--node-mtbf", "0", "--node-repair", "9"], "not in the range"),
        (["--workload", "case-study", "--job-crashes", "2"], "not in the range"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_simulated(reshape: Any, arguments: list[str], says: str) -> None:
    done = reshape("simulate", *arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_failures_are_drawn_from_each_seed_also_where_nothing_else_is(reshape: Any) -> None:
    failing = ("--node-mtbf", "1000", "--node-repair", "100", "--job-crashes", "0.5")
    done = reshape(
        "simulate", "--workload", "case-study", "--policy", "sidecar", "--seeds", "3", *failing, "-o", "json"
    )
    one, other, third, mean = done.doc["rows"]
    assert [row["seed"] for row in done.doc["rows"]] == [0, 1, 2, None]
    assert len({one["makespan_s"], other["makespan_s"], third["makespan_s"]}) > 1
    assert mean["crashes"] > 0
    assert mean["lost_work_s"] > 0
    assert "back 100 s later" in done.doc["invented"][-1]


def test_paper_prints_paper_ours_and_the_difference(reshape: Any) -> None:
    done = reshape("paper", "case-study", "-o", "json")
    assert done.code == 0
    first = done.doc["paper"][0]
    assert (first["policy"], first["paper"], first["ours"], first["difference"]) == ("default", 1249, 1249, 0)
    assert done.doc["fitted"]
    table = reshape("paper", "case-study").out
    assert "-33.1 (-2.9%)" in table
    assert "case-study, published by: SideCar scheduling" in table
    assert "as claimed" in table


def test_paper_all_writes_the_figures_of_every_experiment_down(reshape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(page, "write", lambda figures: [written.append(figures), Path("docs/papers.md")][1:])
    monkeypatch.setattr(results, "EXPERIMENTS", ("case-study", "specon-fixed"))
    monkeypatch.setattr(causes, "CAUSES", [cause for cause in causes.CAUSES if cause.experiment == "specon-fixed"])
    done = reshape("paper", "all", "--seeds", "1")
    assert list(written[0]) == ["case-study", "specon-fixed", *(cause.name for cause in causes.CAUSES)]
    assert all(experiment["figures"] for experiment in written[0].values())
    assert "docs/papers.md is written" in done.err
    assert "specon-fixed, published by: SpeCon" in done.out


def test_paper_ends_with_1_and_says_so_where_a_figure_is_missed(reshape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    missed = {"policy": "sidecar", "measure": "makespan_s", "ours": 900.0, "claim": "within 3%", "holds": False}
    full = {"paper": 845.0, "against": None, "difference": 55.0, "relative": 0.065, "source": "SideCar scheduling"}
    said = {"spread": None, "verdict": "misses its claim"}
    monkeypatch.setattr(verdicts, "compare", lambda summary: [{**missed, **full, **said}])
    done = reshape("paper", "case-study")
    assert done.code == 1
    assert "sidecar misses makespan_s: 900, claimed within 3%." in done.err


def test_charts_of_the_first_seed_are_written_as_svg_and_png(reshape: Any, tmp_path: Path) -> None:
    done = reshape("simulate", "--workload", "case-study", "--policy", "sidecar", "--plot", str(tmp_path / "charts"))
    assert done.code == 0
    names = {f"case-study-{what}.{kind}" for what in ("sidecar", "jct", "gpus") for kind in ("svg", "png")}
    assert {path.name for path in (tmp_path / "charts").iterdir()} == names
    assert all(path.stat().st_size > 1000 for path in (tmp_path / "charts").iterdir())


def test_spans_are_counted_while_they_last() -> None:
    assert at_once([(0.0, 2.0), (1.0, 3.0)]) == [(0.0, 1.0), (1.0, 2.0), (2.0, 1.0), (3.0, 0.0)]


def test_a_distribution_rises_to_one() -> None:
    assert distribution([3.0, 1.0]) == [(0.0, 0.0), (1.0, 0.5), (3.0, 1.0)]
