"""Promise: FlowCon gives cores to the jobs that grow, leaves none idle, and lets all jobs train."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler.decision import check
from adaptive_scheduler.engine import decide
from adaptive_scheduler.models.contention import water_fill
from adaptive_scheduler.policies.flowcon import schedule_limits
from adaptive_scheduler.profiles.growth import UNMEASURED, Efficiency
from adaptive_scheduler.settings import Deadlines, FlowCon, Settings
from adaptive_scheduler.tentative_snapshot import after
from tests.unit.adaptive_scheduler.worlds import cluster, cpu_node, on_cpu, running, waiting

ALONE = Settings(systems=("flowcon",))


def record(in_list, growth):
    """What `measure` keeps of a job: its growth efficiency, and the same as a share of its peak."""
    return Efficiency(in_list, True, {"cpu": 1000 * growth}, {"cpu": 1000.0}, {"cpu": growth})


def job(job_id, in_list, growth, **more):
    return on_cpu(job_id, efficiency=record(in_list, growth), **more)


def world(*jobs, **node):
    return cluster(*jobs, nodes=(cpu_node(**node),))


def limits(*jobs, settings=ALONE, now=0.0, **node):
    return {x.job: x.cores for x in schedule_limits(world(*jobs, **node), now, settings)}


def flowcon(**settings):
    return replace(ALONE, flowcon=FlowCon(**settings))


# ---- the vectors of 3.5 and the figures of 3.7


def test_three_jobs_get_the_shares_of_the_vector():
    a, b, c = job("a", "CL", 0.01), job("b", "WL", 0.03, cpu_limit=0.5), job("c", "NL", 0.06)
    assert limits(a, b, c) == {"a": pytest.approx(1 / 6), "c": pytest.approx(0.6)}  # b keeps its 0.5


def test_a_newcomer_is_not_limited_and_a_slow_job_goes_down_to_the_floor_which_fixes_beta_at_2():
    vae, newcomer = job("vae", "CL", 0.04), on_cpu("mnist")
    assert limits(vae, newcomer) == {"vae": 0.25}
    use = water_fill(1.0, [0.25, math.inf])
    assert use == [0.25, 0.75]  # as the paper shows when MNIST(P) starts at 40 s


def test_once_nobody_grows_any_more_all_limits_are_lifted():
    both = [job(i, "CL", 0.01, cpu_limit=limit) for i, limit in (("a", 0.25), ("b", 0.75))]
    assert limits(*both) == {"a": None, "b": None}


# ---- the ambiguities F1 to F13


def test_f1_jobs_are_compared_by_their_own_peak_unless_raw_values_are_asked_for():
    """A large-valued loss must not take the node from a job that is at its best."""
    vae = on_cpu("vae", efficiency=Efficiency("NL", True, {"cpu": 900.0}, {"cpu": 9000.0}, {"cpu": 0.1}))
    mnist = on_cpu("mnist", efficiency=Efficiency("NL", True, {"cpu": 100.0}, {"cpu": 100.0}, {"cpu": 1.0}))
    assert limits(vae, mnist) == {"vae": 0.25, "mnist": pytest.approx(1 / 1.1)}
    assert limits(vae, mnist, settings=flowcon(efficiency="raw")) == {"vae": 0.9, "mnist": 0.25}


def test_f2_only_growth_per_cpu_is_looked_at():
    a = replace(record("NL", 1.0), share={"cpu": 1.0, "memory": 0.0})
    assert limits(on_cpu("a", efficiency=a), job("b", "NL", 1.0)) == {"a": 0.5, "b": 0.5}


def test_f3_a_new_job_has_the_floor_too_unless_as_printed():
    jobs = job("a", "NL", 0.1), job("b", "NL", 0.45), job("c", "NL", 0.45)
    assert limits(*jobs)["a"] == pytest.approx(1 / 6)
    assert limits(*jobs, settings=flowcon(nl_floor=False))["a"] == pytest.approx(0.1)


def test_f4_a_job_that_is_not_measured_counts_as_one_at_its_peak():
    assert limits(job("a", "NL", 0.5), on_cpu("b")) == {"a": pytest.approx(1 / 3)}


def test_f5_limits_are_lifted_only_when_all_are_converging():
    assert limits(job("a", "CL", 0.0), job("b", "NL", 1.0), job("c", "CL", 0.0))["a"] == pytest.approx(1 / 6)


def test_f9_where_nobody_grows_at_all_shares_are_equal():
    jobs = [job("a", "CL", 0.0), job("b", "CL", 0.0), job("c", "WL", 0.0, cpu_limit=0.4)]
    assert limits(*jobs) == {"a": pytest.approx(1 / 3), "b": pytest.approx(1 / 3)}


def test_f10_cores_that_a_job_cannot_use_go_to_the_others_unless_as_printed():
    """LSTM-CFC uses 19 % of a node at most; half of it would be kept for it."""
    jobs = job("lstm", "NL", 1.0, demand=0.19), job("vae", "NL", 1.0)
    assert limits(*jobs) == {"lstm": 0.5, "vae": pytest.approx(0.81)}
    assert limits(*jobs, settings=flowcon(idle_cores="left")) == {"lstm": 0.5, "vae": 0.5}


def test_f10_what_is_idle_is_given_in_proportion_to_the_limits():
    jobs = job("lstm", "NL", 1.0, demand=0.1), job("a", "NL", 1.0), job("b", "NL", 0.5)
    assert limits(*jobs) == {"lstm": 0.4, "a": pytest.approx(0.6), "b": pytest.approx(0.3)}


def test_f10_a_job_left_alone_is_not_held_to_what_it_had_in_company():
    alone = job("vae", "WL", 0.04, cpu_limit=0.25)
    assert limits(alone) == {"vae": None}
    assert limits(alone, settings=flowcon(idle_cores="left")) == {}


def test_f10_a_job_that_keeps_its_limit_gets_what_is_idle_only_when_nobody_else_can_use_it():
    kept, growing = job("kept", "WL", 0.04, cpu_limit=0.25), job("new", "NL", 0.3)
    assert limits(kept, growing) == {"new": pytest.approx(0.3 / 0.34)}
    small = job("small", "CL", 0.01, demand=0.5)
    assert limits(kept, small) == {"kept": 0.5, "small": 0.5}


LSTM = {"demand": 0.19, "rate": 0.19, "iterations_left": 100.0}
"""100 core-seconds that take 526 s at least."""


@pytest.mark.parametrize(("others_s", "cores"), [(300.0, {}), (500.0, {"lstm": 0.25})])
def test_a_job_that_would_end_last_and_cannot_use_the_whole_node_is_not_limited(others_s, cores):
    """Nothing makes up for what it misses: at the end it trains alone and most of the node is idle (ours)."""
    lstm = job("lstm", "CL", 0.01, **LSTM)
    vae = job("vae", "NL", 1.0, rate=0.81, iterations_left=others_s)
    assert {k: v for k, v in limits(lstm, vae).items() if k == "lstm"} == cores
    assert limits(lstm, vae, settings=flowcon(keep_makespan=False))["lstm"] == 0.25


def test_of_a_job_of_unknown_length_nobody_knows_that_it_ends_last():
    lstm = job("lstm", "CL", 0.01, **(LSTM | {"iterations_left": None}))
    assert limits(lstm, job("vae", "NL", 1.0))["lstm"] == 0.25


def test_f13_limits_may_sum_to_more_than_the_node():
    got = limits(job("a", "NL", 1.0), job("b", "CL", 0.01), job("c", "CL", 0.01))
    assert math.fsum(got.values()) > 1.3


# ---- what is told, and to whom


def test_limits_are_in_cores_of_the_node():
    assert limits(job("vae", "CL", 0.04), on_cpu("mnist"), cores=16.0) == {"vae": 4.0}


def test_f10_cores_that_others_have_requested_and_leave_idle_are_shared_out_too():
    """Limits of a tenth of the node would keep nine tenths idle, which no other pod is kept from by a larger one."""
    jobs = job("a", "CL", 0.01), job("b", "NL", 0.06)
    assert limits(*jobs, cores=0.4, lent_cores=3.6) == limits(*jobs, cores=4.0)


def test_a_limit_in_force_is_not_told_again_until_half_its_time_is_over():
    vae = job("vae", "CL", 0.04, cpu_limit=0.25, limit_until_s=300.0)
    told = [bool(limits(vae, on_cpu("mnist"), now=now)) for now in (0.0, 149.0, 151.0)]
    assert told == [False, False, True]


def test_a_limit_that_has_lifted_itself_is_set_anew():
    vae = job("vae", "CL", 0.04, cpu_limit=0.25, limit_until_s=300.0)
    assert limits(vae, on_cpu("mnist"), now=300.0) == {"vae": 0.25}


def test_a_limit_lasts_longer_than_until_somebody_looks_again():
    decided = schedule_limits(world(job("a", "CL", 0.0), on_cpu("b")), 0.0, flowcon(interval_s=200.0))
    assert [x.lasts_s for x in decided] == [400.0]


def test_jobs_under_an_operation_are_neither_limited_nor_counted():
    """X11; they are once they train, which is a change of the pool."""
    vae = job("vae", "CL", 0.04)
    for busy in (on_cpu("b", busy=True), on_cpu("b", state="initializing"), on_cpu("b", state="adjusting")):
        assert limits(vae, busy) == {}
    assert limits(vae, on_cpu("b")) == {"vae": 0.25}


def test_a_node_that_is_not_heard_of_is_left_alone():
    assert limits(job("vae", "CL", 0.04), on_cpu("b"), heard=False) == {}


def test_x4_jobs_on_gpus_are_neither_limited_nor_counted():
    on_gpu = running("g", 4, node="c", efficiency=record("CL", 0.0))
    assert limits(job("vae", "CL", 0.04), on_cpu("mnist"), on_gpu) == {"vae": 0.25}


def test_the_sentence_says_how_much_and_why():
    snapshot = world(job("vae", "CL", 0.04), on_cpu("mnist"), cores=2.0)
    (limit,) = schedule_limits(snapshot, 0.0, ALONE)
    assert limit.explanation.sentence == (
        "vae is limited to 0.5 of the 2 cores of c: 4% of the growth per core on c is its own, "
        "and no job there gets less than 25%."
    )


# ---- deadlines (X6)

LATE = {"demand": 1.0, "cpu_limit": 0.25, "rate": 1.0, "iterations_left": 100.0}
"""100 s left at the quarter of a core that it has, so 50 s at its fair half."""


@pytest.mark.parametrize(
    ("sla_s", "cores"),
    [
        (1000.0, {}),  # time enough: 900 s to spare
        (109.0, {"vae": 0.5}),  # 9 s, less than a tenth of its target
        (99.0, {"vae": None}),  # late under its limit
    ],
)
def test_x6_a_job_near_its_deadline_gets_its_fair_share_and_one_that_would_miss_it_no_limit(sla_s, cores):
    vae = job("vae", "CL", 0.04, sla_s=sla_s, **LATE)
    together = Settings(systems=("flowcon", "deadline"))
    assert limits(vae, on_cpu("mnist"), settings=together) == cores
    assert limits(vae, on_cpu("mnist"), settings=ALONE) == {}


def test_x6_a_job_freed_for_its_deadline_is_not_limited_again_because_it_is_fast_now():
    together = Settings(systems=("flowcon", "deadline"))
    freed = job("vae", "CL", 0.04, sla_s=99.0, demand=1.0, rate=2.0, iterations_left=100.0)
    assert limits(freed, on_cpu("mnist"), settings=together) == {}


def test_x6_of_a_job_of_unknown_length_only_the_deadline_itself_is_known():
    vae = job("vae", "CL", 0.04, sla_s=100.0, cpu_limit=0.25)
    together = Settings(systems=("flowcon", "deadline"), deadlines=Deadlines(slack_min=0.2))
    near = [limits(vae, on_cpu("b"), settings=together, now=now) for now in (79.0, 81.0, 101.0)]
    assert near == [{}, {"vae": 0.5}, {"vae": None}]


# ---- through the one door


def test_limits_come_last_and_adapt_to_what_was_decided_before():
    """A job that starts now counts once it trains (5.4, line 10)."""
    vae, new = job("vae", "CL", 0.04), waiting("new", optional=(0,))
    decisions = decide(world(vae, new), 0.0, Settings(systems=("flowcon",)))
    assert [type(d).__name__ for d in decisions] == ["Start"]


def test_without_flowcon_nobody_is_limited():
    assert decide(world(job("vae", "CL", 0.04), on_cpu("b")), 0.0, Settings(systems=("elastic",))) == ()


# ---- properties

growths = st.floats(0.0, 1.0)
records = st.one_of(st.just(UNMEASURED), st.builds(record, st.sampled_from(["NL", "WL", "CL"]), growths))
cpu_jobs = st.lists(
    st.tuples(records, st.floats(0.05, 4.0), st.none() | st.floats(0.01, 4.0), st.none() | st.floats(1.0, 1e4)),
    min_size=1,
    max_size=6,
)


def drawn(rows, cores=4.0):
    return world(
        *(
            on_cpu(
                f"j{i}", efficiency=e, demand=d, cpu_limit=limit, sla_s=sla, rate=1.0, share=1.0, iterations_left=9.0
            )
            for i, (e, d, limit, sla) in enumerate(rows)
        ),
        cores=cores,
    )


@given(cpu_jobs, st.sampled_from([("flowcon",), ("flowcon", "deadline")]))
def test_no_core_idles_that_a_job_could_use_and_deciding_again_changes_nothing(rows, systems):
    settings = Settings(systems=systems)
    snapshot = drawn(rows)
    decided = schedule_limits(snapshot, 0.0, settings)
    check(snapshot, decided)
    limited = after(snapshot, *decided)
    caps = [min(j.demand, math.inf if j.cpu_limit is None else j.cpu_limit) for j in limited.jobs]
    possible = min(4.0, math.fsum(j.demand for j in limited.jobs))
    assert math.fsum(water_fill(4.0, caps)) >= 0.98 * possible - 0.04 * len(rows)
    assert schedule_limits(limited, 0.0, settings) == ()


@given(cpu_jobs)
def test_nobody_is_starved(rows):
    """With the floor, each job is allowed a fair part of the node, half at least (beta 2)."""
    snapshot = after(drawn(rows), *schedule_limits(drawn(rows), 0.0, ALONE))
    kept = {j.id for j in snapshot.jobs if j.efficiency.list == "WL"}  # those keep what they had
    for j in snapshot.jobs:
        assert j.id in kept or j.cpu_limit is None or j.cpu_limit >= 4.0 / (2 * len(rows)) - 0.041
