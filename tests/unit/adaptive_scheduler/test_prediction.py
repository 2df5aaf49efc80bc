"""Promise: predicted times are those of `algorithms.md` 1.5, and finite whatever is not known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler.models.prediction import (
    ASSUMED_AT_LEAST_S,
    RemainingTimes,
    is_certain,
    reshape_cost_s,
    t_keep,
    t_new,
    t_run,
    t_train,
    time_left_s,
)
from adaptive_scheduler.profiles.profiles import Profiles
from tests.unit.adaptive_scheduler.worlds import OVERHEADS, PROFILES, cluster, running, speed_rows, waiting

UNKNOWN = Profiles.from_rows([], [{"job_type": "t", **OVERHEADS}])


def test_the_four_formulas_by_hand():
    job = running("j", 2, left=340)
    assert t_train(PROFILES, job, "V100", 2) == pytest.approx(340 / 1.7)
    assert t_keep(PROFILES, job, "V100") == pytest.approx(200 + 5 + 7 + 54)
    assert t_run(PROFILES, job, "V100", 4) == pytest.approx(5 + 7 + 25 + 340 / 2.4 + 5 + 7 + 54)
    assert t_new(PROFILES, waiting(left=340), "V100", 2) == pytest.approx(83 + 25 + 200 + 5 + 7 + 54)


def test_refined_the_victim_trains_on_until_its_newcomer_is_there():
    job = running("j", 2, left=340)  # 200 s of training as it is
    expected = 83 + 37 + (340 - 83 * 1.7) + 66
    assert t_run(PROFILES, job, "V100", 1, trains_on_s=83) == pytest.approx(expected)
    assert t_run(PROFILES, job, "V100", 1, trains_on_s=201) == t_keep(PROFILES, job, "V100")


def test_a_job_of_unknown_length_goes_on_as_long_again_as_it_has_run():
    young, old = running("y", 2, left=None, running_s=5), running("o", 2, left=None, running_s=5000)
    assert t_train(PROFILES, young, "V100", 2) == pytest.approx(ASSUMED_AT_LEAST_S)
    assert t_train(PROFILES, old, "V100", 2) == pytest.approx(5000)
    assert t_train(PROFILES, old, "V100", 1) == pytest.approx(5000 * 1.7)


def test_a_waiting_job_of_unknown_length_is_assumed_on_its_smallest_count():
    job = waiting(left=None, optional=(2, 4))
    assert t_train(PROFILES, job, "V100", 2) == pytest.approx(600)
    assert t_train(PROFILES, job, "V100", 4) == pytest.approx(600 * 1.7 / 2.4)


def test_without_a_speed_the_same_is_assumed_whatever_the_count():
    assert t_train(UNKNOWN, running("j", 1, left=10**6, running_s=900), "V100", 1) == 900
    assert t_new(UNKNOWN, waiting(), "V100", 4) == 600 + 83 + 25 + 66


def test_a_prediction_is_certain_only_with_known_length_and_known_speed():
    assert is_certain(PROFILES, running("j", 1), "V100", 2)
    assert not is_certain(PROFILES, running("j", 1), "V100", 3)  # extrapolated
    assert not is_certain(PROFILES, running("j", 1, left=None), "V100", 2)
    assert not is_certain(PROFILES, running("j", 1, length_unsure=True), "V100", 2)  # only its maximum
    assert not is_certain(UNKNOWN, running("j", 1), "V100", 2)


def test_a_reshape_costs_what_the_job_measured_else_what_its_type_says():
    assert reshape_cost_s(PROFILES, running("j", 1)) == 37
    assert reshape_cost_s(PROFILES, running("j", 1, reshape_cost_s=0.5)) == 0.5


@pytest.mark.parametrize("left", [-5, 0, 1e308, math.inf])
def test_no_length_makes_a_prediction_endless_or_negative(left):
    assert 0 <= t_keep(PROFILES, running("j", 1, left=left), "V100") < 2e9


def test_remaining_times_count_every_placed_job_with_the_count_it_will_have():
    adjusting = running("b", 1, left=100, state="adjusting", busy=True)
    lost = running("c", 1, node="gone", running_s=700)
    times = RemainingTimes.estimate(cluster(running("a", 2, left=340), adjusting, lost, waiting()))
    assert times.seconds == pytest.approx({"a": 266, "b": 166, "c": 766})
    assert (times.max, times.sum) == (766, pytest.approx(1198))


whole = st.integers(0, 50).map(float)


@given(st.dictionaries(st.sampled_from("abcdef"), whole), st.sampled_from("abcdefg"), whole)
def test_replacing_one_time_gives_what_working_it_all_out_again_would(seconds, job, new):
    changed = {**seconds, job: new}
    assert RemainingTimes(seconds).replace(job, new) == (max(changed.values()), sum(changed.values()))


def test_speeds_of_one_gpu_type_say_nothing_of_another():
    profiles = Profiles.from_rows(speed_rows(gpu_type="P100"))
    assert t_train(profiles, running("j", 1, left=7), "V100", 1) == 600


def test_what_is_left_of_a_job_is_at_most_what_its_time_limit_leaves():
    limited = running("j", 2, left=340, running_s=50, time_limit_s=150)
    assert t_train(PROFILES, limited, "V100", 2) == 100, "not 200"
    assert t_train(PROFILES, limited, "V100", 4) == 100, "more GPUs leave it no more time"
    assert t_train(PROFILES, running("j", 2, left=17, time_limit_s=150), "V100", 2) == pytest.approx(10)
    unknown = running("u", 2, left=None, running_s=5000, time_limit_s=5100)
    assert t_train(PROFILES, unknown, "V100", 2) == 100
    assert t_train(UNKNOWN, unknown, "V100", 1) == 100, "also where its speed is not known"
    assert time_left_s(running("o", 2, running_s=5000, time_limit_s=60)) == 0, "never less than nothing"
    assert not is_certain(PROFILES, unknown, "V100", 2), "it may end before that"
