"""`reshape paper NAME --plot`: each figure of an experiment is drawn, with its origin and the published values."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex

from reshape.cli import main
from reshape.output import plots
from reshape_papers import charts, report
from reshape_papers.commands import paper_plots
from reshape_papers.figures import paper_figures
from reshape_papers.figures.chart import POLICIES, Chart, ChartPanel
from reshape_papers.figures.results import ExperimentResults
from reshape_papers.papers.claims import CLAIMS
from reshape_papers.run import compare
from reshape_papers.workloads import NAMES, build, saving_times

SLOW = {
    "elastic-w2", "elastic-w3", "elastic-w4", "deadline-gang", "deadline-binpack", "deadline-task-topology",
    "specon-random-50", "flowcon-random-15",
}  # fmt: skip
"""Their figures are built by the functions that build those of the others."""
SHOWN = dict.fromkeys(figure.experiment for figure in paper_figures.FIGURES if figure.experiment)
SHOWN.pop(saving_times.EXPERIMENT)  # no simulation
FIGURES_OF = {"sidecar": 11, "specon": 12, "flowcon": 17, "slaml": 5}


@pytest.fixture(autouse=True)
def without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure shows lower bounds, which take as long to compute as all else."""
    monkeypatch.setattr(report, "bounds_of", lambda workload: {})


@cache
def results_of(experiment: str, seeds: int = 1, policies: tuple[str, ...] = ()) -> ExperimentResults:
    runs = [run for seed in range(seeds) for run in compare(build(experiment, seed), policies)]
    first = [run for run in runs if run.workload.seed == 0]
    return ExperimentResults(first, report.summary(first[0].workload, [run.row for run in runs]))


def built(file: str, results: Any) -> Chart:
    figure = next(f for f in paper_figures.FIGURES if f.file == file)
    assert figure.build is not None
    return figure.build(results)


def drawn_data(axes: Any) -> int:
    """Return how many different things with a size or a place were drawn."""
    curves = [line for line in axes.lines if len({*map(float, line.get_ydata())}) > 1 or line.get_marker() == "D"]
    bars = [bar for bar in axes.patches if bar.get_width() > 0 and bar.get_height() > 0]
    return len(curves) + len(bars) + len(axes.collections)


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=[pytest.mark.deep] if name in SLOW else []) for name in SHOWN],
)
def test_each_figure_of_an_experiment_is_drawn_and_says_where_it_comes_from(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: dict[str, Any] = {}
    monkeypatch.setattr(plots, "save", lambda figure, path: saved.update({path.name: figure}) or [path])
    monkeypatch.delenv("DISPLAY", raising=False)
    written = paper_plots.draw(experiment, results_of(experiment), tmp_path)
    assert [path.name for path in written] == [figure.file for figure in paper_figures.figures_of(experiment)]
    for name, figure in saved.items():
        assert all(drawn_data(axes) for axes in figure.axes), name
        origin = figure.get_suptitle().splitlines()[1]
        assert origin.startswith(("Simulated", "Not simulated: ", "Measured: ")), name


def test_every_figure_of_the_four_papers_is_listed_and_drawn_or_says_why_not() -> None:
    for paper, count in FIGURES_OF.items():
        assert {f.number for f in paper_figures.FIGURES if f.paper == paper} == set(range(1, count + 1))
    assert all(bool(f.build) == bool(f.experiment) != bool(f.not_drawn) for f in paper_figures.FIGURES)
    files = [f.file for f in paper_figures.FIGURES]
    assert len(files) == len(set(files))
    assert set(SHOWN) <= set(NAMES)


def test_the_case_study_has_the_papers_idle_seconds_beside_ours() -> None:
    results = results_of("case-study")
    termination, sidecar = built("sidecar-fig-1", results).panels
    assert termination.title == "termination: two GPUs stand idle for 174 s (paper: 204 s)"
    assert sidecar.title == "sidecar: two GPUs stand idle for 37 s (paper: 27 s)"
    claimed = next(claim for claim in CLAIMS if (claim.paper, claim.where) == ("SideCar scheduling", "Figure 1"))
    assert (claimed.figure, claimed.simulated) == ("termination 204 s / sidecar 27 s", "174 s / 37 s")
    idle = {(span.begin, span.end) for span in sidecar.spans if span.idle}
    assert idle == {(263.0, 300.0)}


def test_iterations_per_second_stop_where_a_job_is_reshaped() -> None:
    panel = built("sidecar-fig-3", results_of("case-study")).panels[2]
    job_1 = dict(panel.lines[0].points)
    assert job_1[263.0] == 0  # it stops here
    assert job_1[300.0] == pytest.approx(1.7 / 2.4)  # on two GPUs
    assert {mark.at for mark in panel.marks} == {290.0, 692.0, 729.0, 845.0}
    assert all(mark.published for mark in panel.marks)


def test_completion_times_stand_beside_the_published_ones() -> None:
    chart = built("specon-fig-5", results_of("specon-fixed"))
    jobs, means = chart.panels
    assert [bars.paper for bars in jobs.bars] == [{"job-17": 348.7}, {"job-17": 217.6}]
    assert means.bars[0].paper == {"mean completion time": 275.2, "makespan": 1260.0}
    assert means.bars[1].paper["makespan"] == pytest.approx(1190, abs=1)
    assert "In the paper 11 jobs end earlier, the best by 37.6%, on average by 26.7%" in chart.notes[1]


def test_what_is_drawn_of_several_seeds_says_so() -> None:
    chart = built("slaml-fig-4-gang", results_of("deadline-gang", 2, ("gang", "fifo")))
    assert chart.origin == "Simulated, mean of 2 seeds"
    assert all(bars.spread["average response time"] > 0 for bars in chart.panels[0].bars)


def test_the_shares_of_containers_on_a_node_add_up_to_its_cores() -> None:
    panel = built("flowcon-fig-8", results_of("flowcon-fixed")).panels[0]
    assert shares_at(panel, 100.0) == pytest.approx({"VAE(P)": 1 / 3, "MNIST(P)": 1 / 3, "MNIST(T)": 1 / 3})
    assert shares_at(panel, 60.0) == pytest.approx({"VAE(P)": 0.5, "MNIST(P)": 0.5, "MNIST(T)": 0.0})


def shares_at(panel: ChartPanel, at: float) -> dict[str, float]:
    return {line.name: next((y for x, y in reversed(line.points) if x <= at), 0.0) for line in panel.lines}


def test_a_moved_container_is_marked_where_it_changes_its_worker() -> None:
    default, specon = (built(f"specon-fig-{n}", results_of("specon-random-30")).panels[0] for n in (8, 9))
    assert not default.marks
    assert {mark.words for mark in specon.marks} == {"M", "R"}
    moved = specon.marks[0]
    workers = [span.of for span in specon.spans if span.row == moved.row]
    assert len(set(workers)) > 1
    assert any(span.end == pytest.approx(moved.at) for span in specon.spans if span.row == moved.row)


def test_saving_and_resuming_is_shown_by_progress_and_by_model() -> None:
    row = {"model": "vae", "framework": "torch", "machine": "m", "date": "d", "at": [0.1, 0.302, 0.7, 0.9],
           "save_s": [1.0, 1.0, 2.0, 2.0], "resume_s": [3.0, 4.0, 5.0, 6.0]}  # fmt: skip
    gru = row | {"model": "gru", "framework": "keras"}
    by_progress, by_model = (
        figure.build([row, gru]) for figure in paper_figures.figures_of(saving_times.EXPERIMENT) if figure.build
    )
    (line,) = by_progress.panels[0].lines
    assert line.points == [(10.0, 4.0), (pytest.approx(30.2), 5.0), (70.0, 7.0), (90.0, 8.0)]
    assert "torch: 6.0 ± 1.8 s" in by_progress.notes
    assert {bars.name: bars.values for bars in by_model.panels[0].bars} == {
        "torch, 30%": {"vae": 5.0}, "torch, 70%": {"vae": 7.0}, "keras, 30%": {"gru": 5.0}, "keras, 70%": {"gru": 7.0}
    }  # fmt: skip


def test_every_stop_of_the_recorded_vae_is_drawn_at_its_share_of_the_training() -> None:
    chart = built("specon-fig-2", saving_times.rows())
    recorded = {row["framework"]: row["at"] for row in saving_times.rows() if row["model"] == "vae"}
    for line in chart.panels[0].lines:
        at = [x for x, _ in line.points]
        assert at == sorted(at) == pytest.approx([100 * share for share in recorded[line.name]])
        assert len(at) == 9


def test_a_policy_has_one_colour_in_all_figures_also_where_others_are_left_out() -> None:
    of_w1 = results_of("elastic-w1")
    charts_of = {"sidecar-fig-4": results_of("case-study"), **dict.fromkeys(("sidecar-fig-8", "sidecar-fig-11"), of_w1)}
    colours: dict[str, set[Any]] = {}
    for file, results in charts_of.items():
        axes = charts.draw(built(file, results)).axes[0]
        for bars in axes.containers:
            if bars.get_label() in POLICIES:
                colours.setdefault(bars.get_label(), set()).add(to_hex(bars.patches[0].get_facecolor()))
        for line in axes.lines:
            if line.get_label() in POLICIES:
                colours.setdefault(line.get_label(), set()).add(to_hex(line.get_color()))
    assert set(colours) == set(POLICIES)
    assert all(len(its) == 1 for its in colours.values()), colours
    assert len(set.union(*colours.values())) == len(POLICIES), "and each its own"


def test_the_speeds_of_figure_2_are_those_that_w1_runs_on() -> None:
    *_, of_one = built("sidecar-fig-2", results_of("elastic-w1")).panels
    *lines, marks = of_one.lines
    assert marks.published and dict(marks.points) == {1.0: 1.0, 2.0: 1.7, 4.0: 2.4}
    assert [dict(line.points)[4.0] for line in lines] == pytest.approx([2.4] * len(lines))
    assert len({round(dict(line.points)[8.0], 2) for line in lines}) == len(lines) == 3, "on 8 by batch"


def test_means_of_the_jobs_that_gain_and_lose_stand_below_the_bars() -> None:
    notes = built("specon-fig-6", results_of("specon-random-20")).notes
    assert re.search(r"^specon beside ds: \d+ jobs end earlier, the best by [\d.]+%, on average by [\d.]+%", notes[0])
    printed = "the best by 31.6%, on average by 165.7 s; those that end later on average by 110.8 s."
    assert notes[1] == f"In the paper 15 jobs end earlier, {printed}"


def test_the_command_writes_svg_and_png_under_the_papers_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "figures"
    main.run(["--state", str(tmp_path), "paper", "flowcon-fixed", "--plot", str(folder)])
    assert {path.name for path in folder.iterdir()} == {
        f"flowcon-fig-{n}.{kind}" for n in (7, 8) for kind in ("svg", "png")
    }
    assert all(path.stat().st_size > 1000 for path in folder.iterdir())
    assert f"{folder / 'flowcon-fig-7.png'} is written." in capsys.readouterr().err


def test_recorded_times_of_saving_and_resuming_are_drawn_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main.run(["--state", str(tmp_path), "paper", saving_times.EXPERIMENT, "--plot", str(tmp_path)])
    assert {path.name for path in tmp_path.glob("*.svg")} == {"specon-fig-2.svg", "specon-fig-3.svg"}
    told = capsys.readouterr().out
    assert told.startswith("MODEL") and "< 5 s, σ 1.43" in told


def test_an_experiment_without_figures_says_how_to_draw_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main.run(["--state", str(tmp_path), "paper", "workload-s", "--plot", str(tmp_path / "figures")])
    assert code == 1
    assert "reshape simulate --workload workload-s --plot DIR" in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()
