"""Promise: published experiments come out as far as their inputs are known, and rows say what they rest on."""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from reshape_papers import report
from reshape_papers.published_figures import FIGURES, PublishedFigure, compare, original, published
from reshape_papers.workloads import NAMES, build, is_drawn, printed_speeds
from reshape_papers.workloads.sidecar_workloads import JOB_SETS, batch_of
from simulator.cluster import SimulatedCluster
from simulator.scenario import NoWorkload
from tests.unit.papers.simulated_runs import runs, simulate

ROOT = Path(__file__).parents[3]
DATA = os.environ.get("RESHAPE_DATA")


def finished(name, policy, seed=0):
    workload = build(name, seed)
    policy_setup = next(c for c in workload.policy_setups if c.name == policy)
    return {j.given.id: j for j in SimulatedCluster(workload, policy_setup).run().jobs}


def by_policy(summary):
    return {row["policy"]: row for row in summary["rows"] if row["seed"] is None}


# ---- the case study, second by second (1.10)


@pytest.mark.parametrize(
    ("policy", "second_trains", "second_ends", "first_ends"),
    [
        ("default", 807, 1249, 633),
        ("termination", 354, 796, 1110),
        ("sidecar", 300, 742, 836),
        ("sidecar-resolved", 300, 742, 822),  # growing again would cost more than it gains
    ],
)
def test_the_case_study_goes_second_by_second_as_its_fit_says(policy, second_trains, second_ends, first_ends):
    jobs = finished("case-study", policy)
    assert jobs["J2"].trained_from_s == pytest.approx(second_trains)
    assert jobs["J2"].finished_s == pytest.approx(second_ends)
    assert jobs["J1"].finished_s == pytest.approx(first_ends, abs=0.5)


def test_the_case_study_has_the_papers_order_and_its_makespans_within_3_percent():
    summary = simulate("case-study", 20)
    rows = by_policy(summary)
    assert rows["default"]["makespan_s"] > rows["termination"]["makespan_s"] > rows["sidecar"]["makespan_s"]
    for policy, paper in (("default", 1249), ("termination", 1143), ("sidecar", 845)):
        assert rows[policy]["makespan_s"] == pytest.approx(paper, rel=0.03)
    assert summary["seeds"] == [0]  # nothing in it is drawn
    assert [c["holds"] for c in compare(summary) if c["claim"] == "within 3%"] == [True] * 3


# ---- workload S


@pytest.fixture(scope="module")
def workload_s():
    return simulate("workload-s", 20)


def test_workload_s_is_drawn_word_for_word():
    rng = random.Random(7)
    arrivals = sorted(rng.uniform(0, 11000) for _ in range(40))
    drawn = [(at, str(rng.randrange(7)), rng.choice((1, 2, 4, 8))) for at in arrivals]
    assert [(j.arrival_s, j.type, j.fixed_gpus) for j in build("workload-s", 7).jobs] == drawn


@pytest.mark.deep
def test_workload_s_meets_its_floors_over_seeds_0_to_19(workload_s):
    ratio = {c["against"]: c for c in workload_s["comparisons"] if c["policy"] == "sidecar"}
    row = by_policy(workload_s)["sidecar"]
    assert round(row["makespan_over_lp"], 2) <= 1.06
    assert round(ratio["default"]["makespan_ratio"], 2) <= 0.64
    assert round(ratio["termination"]["makespan_ratio"], 2) <= 0.91
    assert round(row["jct_over_bound"], 2) <= 1.70
    assert round(ratio["default"]["mean_jct_ratio"], 3) <= 0.575
    assert round(ratio["termination"]["mean_jct_ratio"], 2) <= 0.81
    assert [c["holds"] for c in compare(workload_s) if c["claim"].startswith("at most")] == [True] * 6


@pytest.mark.deep
def test_workload_s_baselines_come_out_as_published(workload_s):
    rows = by_policy(workload_s)
    assert (round(rows["default"]["makespan_s"]), round(rows["default"]["mean_jct_s"])) == (22364, 6074)
    assert rows["termination"]["makespan_s"] == pytest.approx(15700, rel=0.01)
    assert rows["termination"]["mean_jct_s"] == pytest.approx(4292, rel=0.01)


@pytest.mark.deep
def test_no_run_of_workload_s_is_better_than_possible(workload_s):
    for row in workload_s["rows"]:
        assert 1 <= row["makespan_over_lp"] <= row["makespan_over_fluid"]
        assert row["jct_over_bound"] >= 1
        assert row["mean_jct_s"] <= row["p99_jct_s"] <= row["makespan_s"]
        assert 0 < row["mean_gpus_in_use"] <= 16


@pytest.mark.deep
def test_overheads_and_waiting_jobs_have_the_papers_order_on_workload_s(workload_s):
    rows = by_policy(workload_s)
    assert rows["default"]["overhead_share"] == 0 < rows["sidecar"]["overhead_share"]
    assert rows["sidecar"]["overhead_share"] < rows["termination"]["overhead_share"]
    waiting = [rows[p]["pending_at_last_arrival"] for p in ("sidecar", "termination", "default")]
    assert waiting == sorted(waiting)
    assert rows["termination"]["removes"] == 0


# ---- W1 to W4


W1_TO_W3 = pytest.mark.parametrize(
    ("name", "jobs", "gpu_types"),
    [
        ("elastic-w1", 40, ["V100", "P100"]),
        ("elastic-w2", 20, ["V100", "P100"]),
        ("elastic-w3", 40, ["V100", "K80"]),
    ],
)


@W1_TO_W3
def test_w1_to_w3_have_the_multiples_of_figure_2_and_on_8_gpus_those_of_the_rule(name, jobs, gpu_types):
    workload = build(name, 0)
    assert (len(workload.jobs), [n.gpu_type for n in workload.nodes]) == (jobs, gpu_types)
    profiles = workload.policy_setups[0].profiles
    types = JOB_SETS["two" if name == "elastic-w3" else "one"]
    for job in workload.jobs:
        for gpu_type in gpu_types:
            seconds = {n: profiles.speed(job.type, gpu_type, n).seconds for n in job.optional}
            if job.type == "6":  # no ResNet on ImageNet
                continue
            batch = batch_of(types[int(job.type)])
            wanted = {1: 1.0, 2: 1.7, 4: 2.4, 8: printed_speeds.speed_up(8, batch)}
            assert {n: seconds[1] / s for n, s in seconds.items()} == pytest.approx(wanted)
    assert any("Figure 2" in text and "on 8, which is not printed" in text for text in workload.fitted)


@pytest.mark.parametrize("name", ["elastic-w1", "elastic-w2", "elastic-w3", "elastic-w4"])
def test_on_measured_speeds_there_are_the_same_jobs_with_the_same_speeds_on_one_gpu(name):
    printed, measured = (build(n, 3) for n in (name, f"{name}-measured"))
    assert measured.name == f"{name}-measured"
    assert measured.jobs == printed.jobs
    one, other = (workload.policy_setups[0].profiles.speeds for workload in (printed, measured))
    assert {key: of[1].seconds for key, of in one.items()} == {key: of[1].seconds for key, of in other.items()}
    assert all(one[key][4].seconds > other[key][4].seconds for key in one if key[0] != "6")


@W1_TO_W3
def test_w1_to_w3_on_measured_speeds_have_those_that_are_shipped(name, jobs, gpu_types):
    workload = build(f"{name}-measured", 0)
    assert (len(workload.jobs), [n.gpu_type for n in workload.nodes]) == (jobs, gpu_types)
    profiles = workload.policy_setups[0].profiles
    for job in workload.jobs:
        for gpu_type in gpu_types:
            seconds = [profiles.speed(job.type, gpu_type, n).seconds for n in job.optional]
            if job.type == "6":  # slower on 8 GPUs than on 4: invented
                assert seconds[0] / seconds[3] == pytest.approx(1.1)
                continue
            assert seconds == sorted(seconds, reverse=True) and len(set(seconds)) == 4


def test_a_job_of_w1_trains_two_epochs_of_imagenet():
    workload = build("elastic-w1", 0)
    assert {(j.type, j.iterations) for j in workload.jobs} >= {("0", 2 * 20019), ("1", 2 * 10010)}
    assert workload.policy_setups[0].profiles.speed("0", "V100", 1).seconds == pytest.approx(0.05404, abs=1e-5)


def test_where_a_folder_lacks_its_curves_w4_says_what_to_set():
    with pytest.raises(NoWorkload, match="set RESHAPE_DATA"):
        build("elastic-w4", 0, Path("nowhere"))


def test_a_name_that_nobody_knows_is_answered_with_those_that_are_known():
    with pytest.raises(NoWorkload, match="workload-s"):
        build("w9", 0)
    with pytest.raises(NoWorkload, match="take one of default, termination, sidecar"):
        next(runs("workload-s", 1, ["best"]))


@pytest.mark.deep
@pytest.mark.parametrize("name", ["elastic-w1", "elastic-w2", "elastic-w1-measured", "elastic-w2-measured"])
def test_on_printed_and_on_measured_speeds_the_sidecar_wins_as_a_trend(name):
    summary = simulate(name, 3)
    ratios = {c["against"]: c for c in summary["comparisons"] if c["policy"] == "sidecar"}
    for against in ("default", "termination"):
        assert ratios[against]["makespan_ratio"] < 1
        assert ratios[against]["mean_jct_ratio"] < 1
    assert summary["fitted"]
    assert summary["invented"]


MEASURED = pytest.param(
    DATA and Path(DATA),
    marks=pytest.mark.skipif(
        DATA is None, reason="RESHAPE_DATA names no folder with measured curves, which are not ours"
    ),
)


@pytest.mark.parametrize("data", [None, MEASURED])
def test_w4_has_the_jobs_of_w3_until_their_curve_is_where_they_ended_there(data):
    w3, w4 = (build(name, 5, data) for name in ("elastic-w3", "elastic-w4"))
    same = ("arrival_s", "type", "fixed_gpus")
    assert [[getattr(j, f) for f in same] for j in w3.jobs] == [[getattr(j, f) for f in same] for j in w4.jobs]
    for before, job in zip(w3.jobs, w4.jobs, strict=True):
        assert 0.95 * before.iterations <= job.iterations <= before.iterations
        if job.type == "6":  # trains its ten epochs
            continue
        assert job.accuracy_target.target == job.accuracy_target.curve[-1][1]


@pytest.mark.skipif(DATA is None, reason="RESHAPE_DATA names no folder with the measured curves, which are not ours")
def test_in_w4_predictions_are_far_off_at_first_and_come_nearer():
    for job in build("elastic-w4", 5, Path(DATA)).jobs:
        if job.accuracy_target is None:
            continue
        free = replace(job, accuracy_target=replace(job.accuracy_target, epoch=1.0))  # not held to an epoch
        errors = [abs(done + free.left(done) - job.iterations) / job.iterations for done in _shares(job.iterations)]
        assert errors[0] < 1.0
        assert errors[-1] < 0.1
        assert errors[-1] < errors[0]


def _shares(length):
    return [share * length for share in (0.0, 0.5, 0.9)]


# ---- reports


ON_GPUS = {
    "policy", "seed", "makespan_s", "mean_jct_s", "p99_jct_s", "overhead_share", "adds", "removes", "moves",
    "pending_at_last_arrival", "mean_gpus_in_use", *report.TO_BOUNDS, *report.BOUNDS,
}  # fmt: skip


def test_every_row_has_every_column_that_makes_sense_on_gpus_and_the_mean_comes_last():
    summary = simulate("workload-s", 2, ["default", "sidecar"])
    assert [(row["policy"], row["seed"]) for row in summary["rows"]] == [
        ("default", 0), ("default", 1), ("default", None), ("sidecar", 0), ("sidecar", 1), ("sidecar", None)
    ]  # fmt: skip
    assert all(set(row) == ON_GPUS | (set(report.SPREADS) if row["seed"] is None else set()) for row in summary["rows"])
    assert set(report.COLUMNS) >= ON_GPUS
    assert summary["emulated"]


def test_a_mean_is_of_the_seconds_and_its_ratios_are_of_those_means():
    rows = simulate("workload-s", 2, ["sidecar"])["rows"]
    assert rows[2]["makespan_s"] == (rows[0]["makespan_s"] + rows[1]["makespan_s"]) / 2
    bounds = rows[0]["lp_makespan_s"] + rows[1]["lp_makespan_s"]
    assert rows[2]["makespan_over_lp"] == pytest.approx((rows[0]["makespan_s"] + rows[1]["makespan_s"]) / bounds)


def test_of_one_run_there_is_no_spread():
    rows = simulate("case-study", 1, ["default"])["rows"]
    assert [row.get("makespan_sd_s") for row in rows] == [None, None]


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0), (0.99, 3.97)])
def test_a_percentile_lies_between_the_nearest_two(share, value):
    assert report.percentile([1.0, 2.0, 3.0, 4.0], share) == pytest.approx(value)


def test_the_case_studys_overhead_is_the_stops_over_the_running_time_of_both_jobs():
    row = next(r.row for r in runs("case-study", 1, ["sidecar"]))
    assert row["overhead_share"] == pytest.approx((37 + 37) / ((835.9 - 108) + 442), rel=1e-3)
    assert (row["adds"], row["removes"], row["pending_at_last_arrival"]) == (1, 1, 0)


def test_a_floor_is_only_claimed_of_its_own_seeds():
    floor = PublishedFigure("sidecar", "makespan_over_lp", 1.06, at_most=1.06)
    assert [floor.holds(ours, 20) for ours in (1.064, 1.066)] == [True, False]
    assert floor.holds(1.064, 3) is None


def test_of_a_trend_only_the_sign_is_claimed():
    assert [PublishedFigure("sidecar", "makespan_ratio", 0.55, "default").holds(ours, 20) for ours in (0.99, 1.01)] == [
        True,
        False,
    ]
    assert PublishedFigure("sidecar", "adds", 16.0).holds(30.0, 20) is None


def test_every_published_figure_names_a_workload_and_a_column_that_exist():
    assert set(FIGURES) == {original(name) for name in NAMES}
    assert all(published(name) for name in NAMES)
    compared = {"makespan_ratio", "mean_jct_ratio"}
    for figures in FIGURES.values():
        assert all(f.measure in (compared if f.against else {*report.COLUMNS, report.BY_KIND}) for f in figures)
    not_drawn = {name for name in NAMES if not is_drawn(name)}
    assert not_drawn >= {"case-study", "specon-fixed", "flowcon-fixed"}
    assert not_drawn.isdisjoint({"workload-s", "specon-random-20", "flowcon-random-5"})


def test_nothing_that_runs_in_production_knows_the_simulator():
    imports = re.compile(r"^\s*(from|import) adaptive_scheduler\.simulator", re.MULTILINE)
    files = [
        p for top in ("adaptive_scheduler", "coordinator", "launcher", "sidecar") for p in (ROOT / top).rglob("*.py")
    ]
    assert [p.name for p in files if "simulator" not in p.parts and imports.search(p.read_text())] == []
