"""Entitlements: guarantees first, the rest by weight, nobody above its demand, and the sums hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler.rights.entitlements import Party, credit_of, divide_by_weight, round_to_gpus
from adaptive_scheduler.shares import DecayedUse, JobOwner, QueueShare, Shares, UserShare, decayed

PARTY = st.builds(
    Party,
    demand=st.integers(0, 40).map(float),
    first=st.integers(0, 12).map(float),
    weight=st.sampled_from((0.0, 0.1, 0.5, 1.0, 1.0, 2.0, 7.3)),
)
PARTIES = st.dictionaries(st.sampled_from("abcdefgh"), PARTY, min_size=1)
DAY = 86_400.0


@given(PARTIES, st.integers(0, 60))
def test_all_is_divided_and_nobody_gets_more_than_it_wants(parties, capacity):
    got = divide_by_weight(float(capacity), parties)
    demand = sum(one.demand for one in parties.values())
    assert math.isclose(sum(got.values()), min(capacity, demand), abs_tol=1e-6)
    assert all(-1e-9 <= value <= parties[name].demand + 1e-9 for name, value in got.items())


@given(PARTIES, st.integers(0, 60))
def test_what_is_guaranteed_comes_first(parties, capacity):
    got = divide_by_weight(float(capacity), parties)
    first = {name: min(one.first, one.demand) for name, one in parties.items()}
    if sum(first.values()) <= capacity:
        assert all(got[name] >= first[name] - 1e-9 for name in parties)
    else:
        scale = capacity / sum(first.values())
        assert all(math.isclose(got[name], first[name] * scale, abs_tol=1e-9) for name in parties)


@given(PARTIES, st.integers(0, 60))
def test_of_two_that_want_more_surplus_goes_by_weight(parties, capacity):
    got = divide_by_weight(float(capacity), parties)
    first = {name: min(one.first, one.demand) for name, one in parties.items()}
    hungry = [name for name, one in parties.items() if got[name] < one.demand - 1e-6 and one.weight > 0]
    if sum(first.values()) <= capacity:
        each = [(got[name] - first[name]) / parties[name].weight for name in hungry]
        assert not each or max(each) - min(each) < 1e-6


@given(PARTIES, st.integers(0, 60), st.data())
def test_whole_entitlements_sum_to_all_that_is_wanted_and_there(parties, capacity, data):
    credit = {name: data.draw(st.floats(-2, 2)) for name in parties}
    demand = {name: one.demand for name, one in parties.items()}
    entitled = divide_by_weight(float(capacity), parties)
    got = round_to_gpus(entitled, demand, credit, capacity)
    assert sum(got.values()) == min(capacity, sum(demand.values()))
    assert all(got[name] <= demand[name] and abs(got[name] - entitled[name]) < 1 for name in parties)


def test_the_odd_gpu_goes_to_who_used_less():
    entitled = {"a": 1.5, "b": 1.5}
    assert round_to_gpus(entitled, {"a": 4.0, "b": 4.0}, {"a": -0.1, "b": 0.1}, 3) == {"a": 1, "b": 2}
    assert round_to_gpus(entitled, {"a": 4.0, "b": 4.0}, {"a": 0.1, "b": -0.1}, 3) == {"a": 2, "b": 1}


def test_a_weight_of_0_gets_only_what_nobody_else_wants():
    parties = {"a": Party(4.0, 0.0, 1.0), "b": Party(8.0, 1.0, 0.0)}
    assert divide_by_weight(8.0, parties) == {"a": 4.0, "b": 4.0}
    assert divide_by_weight(4.0, parties) == {"a": 3.0, "b": 1.0}


@given(st.floats(0, 1e7), st.floats(0, 100), st.floats(0, 1e6), st.floats(0, 1e6))
def test_use_decays_the_same_in_one_step_or_in_two(use, held, first_s, then_s):
    once = decayed(use, held, first_s + then_s, DAY)
    twice = decayed(decayed(use, held, first_s, DAY), held, then_s, DAY)
    assert math.isclose(once, twice, rel_tol=1e-9, abs_tol=1e-6)


def test_use_is_half_after_its_half_life_and_has_a_bound():
    assert decayed(1000.0, 0.0, DAY, DAY) == 500.0
    assert decayed(0.0, 4.0, 100 * DAY, DAY) == pytest.approx(4 * DAY / math.log(2))


def test_credit_is_0_in_balance_and_has_bounds():
    assert credit_of(50.0, 100.0, 0.5, 1000.0) == 0.0
    assert credit_of(0.0, 1000.0, 0.5, 1000.0) == 1.0
    assert credit_of(0.0, 1e9, 0.5, 1000.0) == 2.0
    assert credit_of(1e9, 1e9, 0.5, 1000.0) == -2.0


def test_the_meter_counts_what_was_held_until_now_and_forgets_who_is_long_gone():
    ada, bob = JobOwner("default", "ada"), JobOwner("default", "bob")
    meter = DecayedUse({}, {})
    meter.look(0.0, {ada: 2.0}, DAY)
    meter.look(10.0, {bob: 1.0}, DAY)
    assert meter.use[ada] == pytest.approx(20.0, rel=1e-3)
    assert bob not in meter.use
    meter.look(30 * DAY, {bob: 1.0}, DAY)
    assert ada not in meter.use and meter.use[bob] > DAY


def test_where_a_job_is_that_names_no_queue():
    shares = Shares(
        {"vision": QueueShare(users=("ada",)), "nlp": QueueShare(owners="shared")}, {"bob": UserShare(queue="nlp")}
    )
    assert shares.owner_of("", "ada") == JobOwner("vision", "ada")
    assert shares.owner_of("", "bob") == JobOwner("nlp", "")
    assert shares.owner_of("", "eve") == JobOwner("default", "eve")
    assert shares.owner_of("vision", "eve") == JobOwner("vision", "eve")
    assert Shares().owner_of("anything", "ada") == JobOwner("default", "ada")


def test_who_may_not_submit_where_is_told_why():
    shares = Shares({"vision": QueueShare(users=("ada",)), "nlp": QueueShare()})
    assert shares.refusal("vision", "ada") == shares.refusal("nlp", "bob") == shares.refusal("", "bob") == ""
    assert shares.refusal("visoin", "ada") == "queue 'visoin' is unknown; the queues are default, nlp, vision"
    assert shares.refusal("vision", "bob") == "user 'bob' may not use queue vision: shares.yaml lets ada use it"
    assert Shares().refusal("anything", "ada") == ""


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (Shares({"a": QueueShare(guaranteed=4, limit=2)}), "Queue a has a limit of 2, below the 4 GPUs"),
        (Shares({"a": QueueShare(guaranteed=4), "b": QueueShare(guaranteed=5)}), "guaranteed 9 GPUs together"),
        (Shares(users={"ada": UserShare(queue="vision")}), "User ada belongs to queue 'vision'"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_sentence(shares, words):
    assert words in shares.problem({"V100": 8})


def test_good_shares_have_no_problem():
    assert Shares({"a": QueueShare(guaranteed=4, limit=4), "b": QueueShare(guaranteed=4)}).problem({"V100": 8}) == ""
