"""Promise: SpeCon's categories follow the growth of any evaluation value, and only what says something (2.3)."""

from dataclasses import replace

import pytest

from adaptive_scheduler.profiles.growth import UNSEEN, EvaluationReading, Growth, categorise
from adaptive_scheduler.settings import SpeCon

RAW = SpeCon(growth="raw")


def reading(at_s, value, evaluations=None, iterations=None, generation=0, **more):
    evaluations = at_s if evaluations is None else evaluations
    return EvaluationReading(at_s, value, evaluations, at_s if iterations is None else iterations, generation, **more)


def after_growths(growths, settings=RAW, record=UNSEEN):
    """The record after each interval of 30 s in which the value fell by so much."""
    value, records = 100.0, []
    record = categorise(record, reading(0.0, value), settings)
    for i, growth in enumerate(growths, 1):
        value -= growth
        record = categorise(record, reading(30.0 * i, value), settings)
        records.append(record)
    return records


def words(records):
    return " ".join(r.category + "!" * r.slow_again for r in records)


def test_the_vector_of_2_6():
    records = after_growths((0.5, 0.2, 0.008, 0.006, 0.007, 0.004, 0.003, 0.2, 0.005))
    assert words(records) == "PC PC WC CC CC CC! CC! PC WC"
    assert [r.converged_s for r in records] == [None, None, None, 120, 120, 120, 120, None, None]


def test_s1_growth_is_a_share_of_the_range_seen_so_far_whatever_the_scale():
    losses = (2.0, 1.0, 0.8, 0.79, 0.785)
    for scale, shift in ((1.0, 0.0), (1000.0, 0.0), (-1.0, 5.0)):
        record = UNSEEN
        for i, loss in enumerate(losses):
            record = categorise(record, reading(30 * i, loss * scale + shift), SpeCon())
        assert record.growth == pytest.approx(0.005 / 1.215)
        assert record.category == "CC"  # 0.01 / 1.21 was below alpha too


def test_s1_a_raw_difference_depends_on_the_scale():
    assert words(after_growths((50, 20, 8, 6), RAW)) == "PC PC PC PC"
    assert words(after_growths((0.5, 0.2, 0.008, 0.006), RAW)) == "PC PC WC CC"


def test_s2_nothing_is_decided_before_two_growths_are_known():
    assert words(after_growths((0.001,))) == "PC"
    assert words(after_growths((0.002, 0.001))) == "PC WC"


def test_s3_an_interval_without_a_new_evaluation_counts_into_the_next():
    first = categorise(UNSEEN, reading(0, 10.0), RAW)
    second = categorise(first, reading(30, 9.0), RAW)
    assert categorise(second, reading(60, 9.0, evaluations=30), RAW) == second
    assert categorise(second, reading(90, 8.5), RAW).growth == 0.5


def test_s3_a_request_stands_for_one_interval_only():
    record = after_growths((0.5, 0.008, 0.006, 0.005))[-1]
    assert record.slow_again
    assert not categorise(record, replace(record.last, at_s=999.0), RAW).slow_again


def test_s3_a_value_that_is_no_number_is_nothing_new():
    record = after_growths((0.5, 0.2))[-1]
    for value in (None, float("nan"), float("inf")):
        assert categorise(record, reading(90, value), RAW) == record


def test_s4_a_job_goes_one_category_down_an_interval():
    assert words(after_growths((0.5, 0.0, 0.0))) == "PC WC CC"
    assert words(after_growths((0.5, 0.003, 0.002, 0.001))) == "PC WC CC CC!"


def test_a_value_that_stands_still_has_converged_and_as_printed_never_does():
    still = (0.5, 0.0, 0.0, 0.0, 0.0)
    assert words(after_growths(still)) == "PC WC CC CC! CC!"
    assert words(after_growths(still, replace(RAW, slowing="strict"))) == "PC WC WC WC WC"


def test_growth_that_rises_below_alpha_leaves_a_job_where_it_is():
    for slowing in ("not_risen", "strict"):
        assert words(after_growths((0.5, 0.002, 0.003), replace(RAW, slowing=slowing))) == "PC WC WC"


def test_s5_growth_of_just_alpha_progresses():
    settings = SpeCon(growth="raw", alpha=0.25)  # a quarter has no rounding
    assert words(after_growths((0.5, 0.125, 0.0625, 0.25), settings)) == "PC WC CC PC"


def test_s6_a_job_that_has_moved_keeps_its_category_only_where_that_is_wished():
    record = after_growths((0.5, 0.008, 0.006))[-1]
    recovers = reading(200, record.last.value - 5)
    assert categorise(record, recovers, RAW, migrated=True).category == "PC"
    assert categorise(record, recovers, SpeCon(growth="raw", freeze_migrated=True), migrated=True).category == "CC"
    assert categorise(record, recovers, SpeCon(growth="raw", freeze_migrated=True)).category == "PC"


def test_x8_an_interval_with_a_restart_or_a_move_in_it_is_forgotten():
    record = after_growths((0.5, 0.2))[-1]
    jumped = categorise(record, reading(90, 500.0, generation=1), RAW)
    assert (jumped.category, jumped.growth, jumped.high) == (record.category, record.growth, record.high)
    assert categorise(jumped, reading(120, 499.9, generation=1), RAW).growth == pytest.approx(0.1)


def test_x8_the_first_value_after_a_restart_is_waited_for():
    """Until then the newest value is the one from before, from which nothing may be measured."""
    record = after_growths((0.5, 0.2))[-1]
    stalled = categorise(record, reading(90, record.last.value, evaluations=60.0, generation=1), RAW)
    first = categorise(stalled, reading(120, 50.0, generation=1), RAW)
    assert (first.growth, first.last.value) == (record.growth, 50.0)


def test_x5_a_new_limit_makes_nobody_look_converged():
    """Half the iterations and half the growth in that interval: by iteration it grows as before."""
    record = UNSEEN
    for i, value in enumerate((10.0, 9.0, 8.2)):
        record = categorise(record, reading(30 * i, value), SpeCon(growth="raw", alpha=0.5))
    slowed = reading(90, 7.85, iterations=75, limits=1)
    record = categorise(record, slowed, SpeCon(growth="raw", alpha=0.5))
    assert (record.category, record.growth) == ("PC", pytest.approx(0.7))
    again = reading(120, 7.5, iterations=110, limits=2)
    record = categorise(record, again, SpeCon(growth="raw", alpha=0.5))
    assert record.growth == pytest.approx(0.35 * 30 / 35), "by what it did before any of both changes"


def test_x5_under_a_limit_that_stays_a_job_is_measured_as_it_is():
    first = categorise(UNSEEN, reading(0, 10.0, limits=1), RAW)
    assert categorise(first, reading(30, 9.0, iterations=3, limits=1), RAW).growth == 1.0


def test_values_of_any_size_give_a_finite_growth():
    record: Growth = UNSEEN
    for i, value in enumerate((1e308, -1e308, 5e-324, 1e308)):
        record = categorise(record, reading(30 * i, value), SpeCon())
        record = categorise(record, reading(30 * i + 15, value, limits=i, iterations=30 * i + 1e-9), SpeCon())
    assert record.growth is not None and 0 <= record.growth < float("inf")
