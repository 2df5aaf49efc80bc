"""Promise: growth efficiency, lists and intervals of FlowCon come out as in its paper, whenever they are read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler.policies.flowcon import FlowConInterval, next_interval_s
from adaptive_scheduler.profiles.growth import UNMEASURED, Efficiency, EvaluationReading, measure
from adaptive_scheduler.settings import FlowCon

DEFAULT = FlowCon()


def read(at_s, value, evaluations=None, generation=0, cpu=1.0, **more):
    count = int(at_s) if evaluations is None else evaluations
    return EvaluationReading(at_s, value, count, at_s, generation, usage={"cpu": cpu}, **more)


def after(*readings, settings=DEFAULT, record=UNMEASURED):
    for reading in readings:
        record = measure(record, reading, settings)
    return record


# ---- Algorithm 1, first half


def test_growth_is_per_second_and_per_core():
    got = after(read(0, 10.0), read(20, 6.0, cpu=0.5))
    assert got.raw == {"cpu": pytest.approx(4 / 20 / 0.5)}
    assert (got.list, got.measured, got.share) == ("NL", True, {"cpu": 1.0})


def test_a_value_that_rises_grows_as_much_as_one_that_falls():
    assert after(read(0, 0.1), read(20, 0.5)).raw == after(read(0, 0.5), read(20, 0.1)).raw


def test_shares_are_of_the_jobs_own_peak():
    got = after(read(0, 10.0), read(20, 6.0), read(40, 5.0))
    assert got.share == {"cpu": pytest.approx(0.25)}
    assert got.peak == {"cpu": pytest.approx(0.2)}


def test_the_first_reading_is_only_a_baseline():
    assert after(read(20, 5.0)).measured is False
    assert after(read(20, 5.0)).list == "NL"


def test_a_job_goes_from_new_to_watching_to_completing_and_back_once_it_grows():
    values = [100.0, 50.0, 49.0, 48.0, 47.0, 20.0]
    record, lists = UNMEASURED, []
    for i, value in enumerate(values):
        record = measure(record, read(20 * i, value), DEFAULT)
        lists.append(record.list)
    assert lists == ["NL", "NL", "WL", "CL", "CL", "NL"]


def test_exactly_alpha_counts_as_growing():
    half = FlowCon(alpha=0.5)
    assert after(read(0, 8.0), read(20, 4.0), read(40, 2.0), settings=half).list == "NL"


def test_f1_a_loss_of_large_values_looks_no_better_unless_raw_is_asked_for():
    small = [read(0, 1.0), read(20, 0.5), read(40, 0.49)]
    large = [read(r.at_s, 1000 * r.value) for r in small]
    assert after(*small).list == after(*large).list == "WL"
    assert after(*large).share["cpu"] == pytest.approx(after(*small).share["cpu"])
    raw = FlowCon(efficiency="raw")
    assert [after(*x, settings=raw).list for x in (small, large)] == ["CL", "NL"]


def test_f2_only_the_cpu_decides_on_the_list():
    readings = [
        EvaluationReading(t, v, t, t, 0, {"cpu": 1.0, "memory": m})
        for t, v, m in ((0, 9.0, 1.0), (20, 5.0, 1.0), (40, 4.0, 99.0))
    ]
    got = after(*readings)
    assert got.list == "NL"
    assert got.share["memory"] < 0.05 < got.share["cpu"]


def test_f8_a_short_interval_is_not_measured_but_counts_into_the_next():
    got = after(read(0, 10.0), read(2, 9.0, cpu=1.0), read(10, 6.0, cpu=0.5))
    assert after(read(0, 10.0), read(2, 9.0)).measured is False
    assert got.raw == {"cpu": pytest.approx(4 / (2 * 1.0 + 8 * 0.5))}


def test_f8_without_a_new_value_nothing_is_concluded():
    """The same count of evaluations again is no growth of zero."""
    before = after(read(0, 10.0, 1), read(20, 6.0, 2))
    same = after(read(40, 6.0, 2), record=before)
    assert (same.list, same.share, same.last) == (before.list, before.share, before.last)
    assert after(read(60, 4.0, 3), record=same).raw == {"cpu": pytest.approx(2 / 40)}


def test_an_equal_value_that_was_evaluated_again_is_no_growth():
    assert after(read(0, 10.0, 1), read(20, 6.0, 2), read(40, 6.0, 3)).share == {"cpu": 0.0}


def test_x8_the_interval_of_a_restart_is_forgotten_and_the_record_kept():
    slow = after(read(0, 10.0), read(20, 6.0), read(40, 5.9))
    restarted = after(read(60, 9.0, generation=1), record=slow)
    assert (restarted.list, restarted.share) == (slow.list, slow.share)
    assert after(read(80, 8.9, generation=1), record=restarted).raw == {"cpu": pytest.approx(0.1 / 20)}


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_reading_without_a_number_is_no_baseline_and_no_growth(value):
    assert after(read(0, value), read(20, 5.0)).measured is False
    assert after(read(0, 10.0), read(20, value)).measured is False
    assert after(read(0, 10.0), read(20, value), read(40, 6.0)).raw == {"cpu": pytest.approx(4 / 40)}


def test_an_interval_whose_cpu_use_nobody_saw_is_forgotten():
    unseen = EvaluationReading(20, 6.0, 20, 20, 0)
    got = after(read(0, 10.0), unseen, read(40, 5.0))
    assert got.raw == {"cpu": pytest.approx(1 / 20)}


def test_a_job_that_hardly_got_any_cpu_makes_no_peak_for_ever():
    idle = after(read(0, 10.0), read(20, 9.9, cpu=1e-9))
    assert idle.peak["cpu"] <= 0.1 / 20 / 0.01


def test_a_loss_that_explodes_stays_a_number():
    got = after(read(0, 1e308), read(20, -1e308), read(40, 1.0))
    assert all(math.isfinite(x) for x in (*got.raw.values(), *got.share.values()))


@given(st.lists(st.tuples(st.floats(0.1, 60), st.floats(0, 1e6), st.floats(0, 8), st.integers(0, 2)), max_size=20))
def test_every_share_lies_between_0_and_the_peak_and_one_reading_moves_one_list(rows):
    record, now, order = UNMEASURED, 0.0, ["NL", "WL", "CL"]
    for i, (dt, value, cpu, generation) in enumerate(rows):
        now += dt
        following = measure(record, read(now, value, i, generation, cpu), DEFAULT)
        assert all(0 <= share <= 1 for share in following.share.values())
        assert following.list == "NL" or order.index(following.list) - order.index(record.list) in (0, 1)
        record = following


# ---- intervals and listeners (F5, F6, X14)

CL, NL = Efficiency("CL", True), Efficiency("NL", True)


def test_f5_the_interval_doubles_while_all_are_converging_up_to_8_times():
    seen, present = [], 20.0
    for _ in range(5):
        present = next_interval_s(present, [CL, CL], DEFAULT)
        seen.append(present)
    assert seen == [40.0, 80.0, 160.0, 160.0, 160.0]


def test_f5_one_job_that_grows_again_resets_it():
    assert next_interval_s(160.0, [CL, NL], DEFAULT) == 20.0
    assert next_interval_s(160.0, [], DEFAULT) == 20.0


def test_f5_as_printed_there_is_no_cap():
    assert next_interval_s(160.0, [CL], FlowCon(interval_max_factor=0.0)) == 320.0


def pool(*names, generation=0):
    return frozenset((name, generation) for name in names)


def backed_off():
    """Two converging jobs, looked at 3 times: the next look is 160 s away."""
    pace, now = FlowConInterval(), 0.0
    for _ in range(4):
        pace = pace.stepped(now, pool("a", "b"), [CL, CL], DEFAULT)
        now = pace.due_s
    return pace


def test_the_first_look_is_due_at_once_and_the_next_after_an_interval():
    pace = FlowConInterval()
    assert pace.is_due(0.0, pool("a"))
    pace = pace.stepped(0.0, pool("a"), [NL], DEFAULT)
    assert [pace.is_due(now, pool("a")) for now in (0.0, 19.9, 20.0)] == [False, False, True]


@pytest.mark.parametrize(
    "changed",
    [
        pool("a", "b", "c"),  # an arrival
        pool("a"),  # an exit
        pool("a", "c"),  # both at once: as many as before (F6)
        pool("a") | pool("b", generation=1),  # a move or a GPU change (X14)
    ],
)
def test_any_change_of_the_pool_is_looked_at_once_and_ends_the_back_off(changed):
    pace = backed_off()
    assert pace.interval_s == 160.0
    now = pace.due_s - 150.0
    assert not pace.is_due(now, pool("a", "b"))
    assert pace.is_due(now, changed)
    assert pace.stepped(now, changed, [CL, NL], DEFAULT).interval_s == 20.0
    assert pace.stepped(now, changed, [CL, CL], DEFAULT).interval_s == 40.0  # reset first, then doubled
