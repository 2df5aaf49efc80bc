"""Promise: profiles hold what is true of a job type, say where it comes from, and never take a bad row."""

import math

import pytest

from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles, Speed, speed_up


def row(n, seconds, origin="imported", job_type="resnet", gpu_type="V100"):
    return {
        "job_type": job_type,
        "gpu_type": gpu_type,
        "num_gpus": n,
        "seconds_per_iteration": seconds,
        "origin": origin,
    }


def test_the_papers_table_iv_is_read_back_as_it_is_written():
    table = {"1080Ti": (0.31, 0.23), "P100": (0.25, 0.19), "V100": (0.18, 0.14)}
    rows = [row(n, s, job_type=0, gpu_type=g) for g, pair in table.items() for n, s in zip((1, 2), pair, strict=True)]
    profiles = Profiles.from_rows(rows)
    assert profiles.problems == ()
    assert [profiles.speed("0", g, n).seconds for g in table for n in (1, 2)] == [0.31, 0.23, 0.25, 0.19, 0.18, 0.14]


def test_a_type_without_any_row_on_this_gpu_type_has_no_speed():
    profiles = Profiles.from_rows([row(1, 0.5)])
    assert profiles.speed("resnet", "P100", 1) is None
    assert profiles.speed("other", "V100", 1) is None
    assert Profiles().speed("resnet", "V100", 1) is None


def test_a_missing_count_is_predicted_from_the_nearest_one_by_the_prior():
    profiles = Profiles.from_rows([row(1, 1.0), row(8, 0.4)])
    assert profiles.speed("resnet", "V100", 2) == Speed(1 / 1.7, "extrapolated")
    assert profiles.speed("resnet", "V100", 4).seconds == pytest.approx(0.4 * 3.1 / 2.4)
    assert profiles.speed("resnet", "V100", 1) == Speed(1.0, "imported")


def test_the_prior_is_the_papers_curve_and_stops_growing_beyond_eight():
    assert [speed_up(n) for n in (1, 2, 4)] == pytest.approx([1, 1.7, 2.4])
    assert 1.7 < speed_up(3) < 2.4
    assert speed_up(16) == speed_up(8) == pytest.approx(3.1)


@pytest.mark.parametrize("rows", [[row(1, 9.0, "measured"), row(1, 5.0)], [row(1, 5.0), row(1, 9.0, "measured")]])
def test_a_measured_row_wins_over_any_other_whatever_their_order(rows):
    assert Profiles.from_rows(rows).speed("resnet", "V100", 1) == Speed(9.0, "measured")


@pytest.mark.parametrize("origin", ["measured", "imported"])
def test_of_two_rows_of_one_origin_the_later_wins(origin):
    profiles = Profiles.from_rows([row(1, 5.0, origin), row(1, 6.0, origin)])
    assert profiles.speed("resnet", "V100", 1).seconds == 6.0


BAD = [0, -1, math.nan, math.inf, 10**400, True, "0.3", None, [0.3]]


@pytest.mark.parametrize("seconds", BAD, ids=[str(type(b).__name__) + str(i) for i, b in enumerate(BAD)])
def test_a_speed_that_cannot_be_true_is_left_out_and_named(seconds):
    profiles = Profiles.from_rows([row(1, seconds), row(2, 0.3)])
    assert profiles.speed("resnet", "V100", 2).seconds == 0.3
    assert profiles.speed("resnet", "V100", 1).origin == "extrapolated"
    (problem,) = profiles.problems
    assert problem.startswith("speed profile row 1 is left out: seconds_per_iteration must be")


@pytest.mark.parametrize(
    "bad",
    [
        {},
        None,
        "text",
        row(0, 1.0),
        row(1.5, 1.0),
        row("1", 1.0),
        row(True, 1.0),
        row(1, 1.0, job_type=""),
        row(1, 1.0, gpu_type=None),
    ],
)
def test_a_row_of_the_wrong_shape_is_left_out_and_never_raises(bad):
    profiles = Profiles.from_rows([bad, row(2, 0.3)], [bad], [bad])
    assert len(profiles.problems) == 3
    assert profiles.speed("resnet", "V100", 2).seconds == 0.3


FIVE = {"k8s_init": 1, "k8s_term": 2, "proc_init": 3, "proc_term": 4, "ckpt": 5}


def test_overheads_come_from_the_type_else_the_default_row_else_the_constant():
    named, default = {"job_type": "resnet", **FIVE, "origin": "measured"}, {"job_type": "default", **FIVE, "ckpt": 50}
    profiles = Profiles.from_rows([], [named, default])
    assert (profiles.overheads("resnet").ckpt, profiles.overheads("resnet").origin) == (5, "measured")
    assert profiles.overheads("other").ckpt == 50
    assert Profiles.from_rows([], [named]).overheads("other") is DEFAULT_OVERHEADS
    assert DEFAULT_OVERHEADS.origin == "assumed"


def test_an_overhead_of_nothing_is_allowed_and_a_negative_or_missing_one_is_not():
    assert Profiles.from_rows([], [{"job_type": "x", **FIVE, "ckpt": 0}]).overheads("x").ckpt == 0
    for bad in ({**FIVE, "ckpt": -1}, {**FIVE, "ckpt": math.nan}, {k: v for k, v in FIVE.items() if k != "ckpt"}):
        profiles = Profiles.from_rows([], [{"job_type": "x", **bad}])
        assert profiles.overheads("x") is DEFAULT_OVERHEADS
        assert "ckpt must be" in profiles.problems[0]


def test_the_papers_accuracy_table_is_kept_in_order_of_iterations():
    points = [(20, 0.032), (1, 0.008), (10, 0.025), (5, 0.019)]
    rows = [{"job_type": 0, "iterations": k, "top5": a} for k, a in points]
    profiles = Profiles.from_rows([], (), [*rows, {"job_type": 0, "iterations": 30, "top5": 1.5}])
    assert [(p.iterations, p.top5) for p in profiles.accuracy("0")] == sorted(points)
    assert "top5 must be between 0 and 1" in profiles.problems[0]
    assert profiles.accuracy("other") == ()


def test_a_restart_that_was_measured_is_what_a_reshape_costs_and_no_start_of_a_launch() -> None:
    row = {"job_type": "t", "k8s_init": 8.0, "k8s_term": 5.0, "proc_init": 9.0, "proc_term": 1.0, "ckpt": 0.5}
    without, with_it = (
        Profiles.from_rows([], [{**row, "origin": "measured", **more}], []).overheads("t")
        for more in ({}, {"proc_restart": 0.75})
    )
    assert (without.reshape, with_it.reshape) == (10.5, 2.25)
    assert without.proc_init == with_it.proc_init == 9.0
