"""Promise: from a few points of its accuracy curve a job's length is predicted, or nothing is claimed."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from adaptive_scheduler.profiles.convergence import _non_negative, clamped_left, falls_to, fit, iterations_to, points_of
from adaptive_scheduler.profiles.profiles import MEASURED, Accuracy


def error(k, b0=0.01, b1=1.2, b2=0.1):
    return 1 / (b0 * k + b1) + b2


def seen(ks, **curve):
    return [(k, 1 - error(k, **curve)) for k in ks]


def needed(target, b0=0.01, b1=1.2, b2=0.1):
    """When the curve itself has the target."""
    return (1 / (1 - target - b2) - b1) / b0


@pytest.mark.parametrize("target", [0.6, 0.7, 0.8])
def test_on_a_curve_of_the_assumed_kind_the_prediction_is_the_curve_itself(target):
    # the floor is one of those tried: a share of 0.99 of the smallest error seen or wanted, in 50 steps
    points = seen(range(0, 100, 10), b2=0.0)
    assert iterations_to(points, target) == pytest.approx(needed(target, b2=0.0), rel=1e-6, abs=1)


def test_a_floor_between_those_that_are_tried_costs_little():
    assert iterations_to(seen(range(0, 400, 20)), 0.8) == pytest.approx(needed(0.8), rel=0.02)


def test_the_answer_counts_from_the_start_not_from_the_last_point():
    early, late = seen(range(0, 200, 10)), seen(range(0, 600, 10))
    assert iterations_to(late, 0.8) == pytest.approx(iterations_to(early, 0.8), rel=0.02)


def test_a_target_that_was_measured_needs_nothing_more():
    assert iterations_to([(10, 0.4), (20, 0.92)], 0.9) == 0
    assert iterations_to([(10, 0.9)], 0.9) == 0


def test_a_loss_is_followed_to_any_value_above_0():
    losses = [(k, 5 * error(k, b2=0.0)) for k in range(0, 200, 10)]
    assert falls_to(losses, 5 * error(900, b2=0.0)) == pytest.approx(900, rel=1e-3)


def test_a_curve_that_has_been_at_the_value_says_when_and_perfect_points_are_left_out():
    errors = [(k, error(k, b2=0.0)) for k in range(0, 2000, 100)]
    assert falls_to([*errors, (3000, 0.0)], error(900, b2=0.0)) == pytest.approx(900, abs=1)


@pytest.mark.parametrize(
    ("needed", "done", "most", "left"),
    [
        (500, 120, 1000, 380),
        (500, 120, None, 380),
        (5000, 120, 1000, 880),
        (100, 120, 1000, 100),
        (200, 120, 1000, 100),
        (100, 950, 980, 30),
        (100, 1200, 1000, 0),
        (None, 120, 1000, 880),
        (None, 120, None, None),
    ],
)
def test_what_is_left_is_at_least_an_epoch_and_at_most_to_the_maximum(needed, done, most, left):
    assert clamped_left(needed, done, 100, most) == left


def test_two_different_iterations_are_too_few_for_a_curve():
    assert iterations_to([(10, 0.1), (20, 0.2), (20, 0.21)], 0.5) is None
    assert iterations_to([], 0.5) is None


def test_without_visible_progress_nothing_is_predicted():
    assert iterations_to([(k, 0.3) for k in range(1, 20)], 0.9) is None
    assert iterations_to([(k, 0.5 - k / 100) for k in range(1, 20)], 0.9) is None


def test_an_accuracy_of_one_is_never_predicted():
    assert iterations_to(seen(range(0, 100, 10)), 1.0) is None


def test_a_longer_curve_seen_makes_the_prediction_better_under_noise():
    draw = random.Random(7)
    noisy = [(k, a + draw.gauss(0, 0.004)) for k, a in seen(range(0, 1000, 20))]
    target = 0.84  # not in the noise of what is shown
    wrong = [abs(iterations_to(noisy[:n], target) - needed(target)) / needed(target) for n in (8, 50)]
    assert wrong[1] < 0.1
    assert wrong[1] < wrong[0]


def test_millions_of_iterations_fit_as_well_as_tens():
    few = iterations_to(seen(range(0, 200, 10)), 0.8)
    many = iterations_to([(k * 1e5, a) for k, a in seen(range(0, 200, 10))], 0.8)
    assert many == pytest.approx(few * 1e5, rel=0.01)


def test_a_loss_of_any_scale_is_fitted_by_the_same_curve():
    losses = [(k, 250 * error(k)) for k in range(0, 500, 10)]
    curve = fit(losses)
    assert curve is not None
    assert all(curve.at(k) == pytest.approx(value, rel=0.02) for k, value in losses)
    assert curve.at(2000) == pytest.approx(250 * error(2000), rel=0.1)


def test_a_value_at_the_floor_is_never_reached():
    curve = fit([(k, error(k)) for k in range(0, 500, 10)])
    assert curve is not None
    assert curve.reaches(curve.b2) == math.inf
    assert curve.at(curve.reaches(0.2)) == pytest.approx(0.2)


def test_values_that_are_not_above_zero_are_not_fitted():
    assert fit([(1, 2.0), (2, 1.0), (3, 0.0)]) is None


def test_profile_points_come_first_and_live_ones_after_them():
    profile = [Accuracy(100, 0.2, MEASURED), Accuracy(200, 0.3, MEASURED)]
    assert points_of(profile, [(150.0, 0.28)]) == [(100.0, 0.2), (200.0, 0.3), (150.0, 0.28)]


def test_the_profile_of_the_type_predicts_before_the_job_has_shown_anything():
    profile = [Accuracy(k, 1 - error(k), MEASURED) for k in range(10, 400, 20)]
    assert iterations_to(points_of(profile, []), 0.8) == pytest.approx(needed(0.8), rel=0.02)


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0.01, 100)), min_size=3, max_size=12, unique_by=lambda p: round(p[0], 3)
    )
)
def test_both_unknowns_are_those_of_scipys_nnls(points):
    k, y = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    b0, b1 = _non_negative(k, y[None, :])
    ours = np.linalg.norm(b0[0] * k + b1[0] - y)
    _, theirs = nnls(np.column_stack([k, np.ones_like(k)]), y)
    assert b0[0] >= 0 and b1[0] >= 0
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)
