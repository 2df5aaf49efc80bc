"""Promise: a job trained on CPU starts where it has room and least company, and a wait names every reason."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler.decision import Hold, Start
from adaptive_scheduler.models.contention import CpuDemand, MovePredictions, completion_times, cpu_demands
from adaptive_scheduler.policies.cpu import schedule_incoming
from adaptive_scheduler.settings import DEFAULTS
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Task
from tests.unit.adaptive_scheduler.worlds import PROFILES, cpu_node, node, on_cpu

GB = 2.0**30


def new(**more):
    return Job("new", "t", "submitted", (0,), iterations_left=100.0, **more)


def answer(*jobs, nodes, newcomer=None):
    return schedule_incoming(ClusterSnapshot(tuple(nodes), jobs, PROFILES), newcomer or new(), 0.0, DEFAULTS)


def asks(cores=0.0, memory=0.0):
    return (Task("train", cores=cores, memory=memory),)


# ---- where it starts


def test_it_starts_beside_the_fewest_jobs_then_where_least_is_in_use():
    nodes = [cpu_node("a"), cpu_node("b", cpu_use=0.9), cpu_node("c", cpu_use=0.5)]
    start = answer(on_cpu("j", "a"), nodes=nodes)
    assert isinstance(start, Start) and (start.node, start.num_gpus) == ("c", 0)
    assert start.explanation.sentence == "new starts on c: alone, the fewest of 3 with room."


def test_volcanos_own_choice_stands():
    start = answer(on_cpu("j", "a"), nodes=[cpu_node("a"), cpu_node("b")], newcomer=new(pinned="a"))
    assert isinstance(start, Start) and start.node == "a"


def test_what_placed_jobs_asked_for_is_not_given_again_even_if_they_do_not_use_it():
    nodes = [cpu_node("a", cores=4.0, memory=16 * GB), cpu_node("b", cores=4.0, memory=4 * GB)]
    lazy = on_cpu("j", "a", tasks=asks(3.0, 8 * GB), demand=0.1)
    for wish, place in ((asks(1.0, 8 * GB), "a"), (asks(2.0, 2 * GB), "b"), (asks(1.0, 4 * GB), "b")):
        start = answer(lazy, nodes=nodes, newcomer=new(tasks=wish))
        assert isinstance(start, Start) and start.node == place


def test_what_a_pod_requests_beside_its_task_takes_room_too():
    lazy = on_cpu("j", "a", tasks=asks(2.0, 4 * GB), beside_cores=0.5, beside_memory=GB)
    for beside, fits in (((0.5, GB), True), ((0.6, GB), False), ((0.5, 2 * GB), False)):
        newcomer = new(tasks=asks(1.0, 2 * GB), beside_cores=beside[0], beside_memory=beside[1])
        answered = answer(lazy, nodes=[cpu_node("a", cores=4.0, memory=8 * GB)], newcomer=newcomer)
        assert isinstance(answered, Start) == fits


def test_every_node_is_kept_with_what_it_would_lead_to():
    there = on_cpu("j", "a", iterations_left=50.0, rate=1.0, share=1.0)
    start = answer(there, nodes=[cpu_node("a"), cpu_node("b")])
    # Nothing is known of the newcomer's speed: ten minutes alone, and the other one's 50 s where it shares.
    assert [(c.node, c.makespan_s, c.low_confidence) for c in start.explanation.candidates] == [
        ("b", 600.0, True),
        ("a", 650.0, True),
    ]


# ---- why it waits


def test_a_wait_names_every_reason_with_its_nodes():
    nodes = [
        cpu_node("a", schedulable=False), cpu_node("b", heard=False), cpu_node("c", cores=1.0),
        cpu_node("d", cores=1.0), node("gpus", idle=2),
    ]  # fmt: skip
    hold = answer(nodes=nodes, newcomer=new(tasks=asks(2.0)))
    assert isinstance(hold, Hold)
    assert hold.explanation.sentence == (
        "new waits: no node takes it. a: it is closed to new jobs. b: it has not been heard of lately. "
        "c, d: it has not enough cores or memory left."
    )


def test_of_many_nodes_a_wait_names_three():
    hold = answer(nodes=[cpu_node(f"n{i}", cores=1.0) for i in range(9)], newcomer=new(tasks=asks(2.0)))
    assert hold.explanation.sentence.endswith("n0, n1, n2 and 6 more: it has not enough cores or memory left.")


@pytest.mark.parametrize(
    ("pinned", "reason"),
    [
        ("a", "it has not enough cores or memory left"),
        ("gpus", "it has no cores for jobs trained on CPU"),
        ("gone", "it is not known; register it or drop the pin"),
    ],
)
def test_a_pinned_job_waits_for_its_node(pinned, reason):
    nodes = [cpu_node("a", cores=1.0), cpu_node("b", cores=8.0), node("gpus", idle=2)]
    hold = answer(nodes=nodes, newcomer=new(pinned=pinned, tasks=asks(2.0)))
    assert hold.explanation.sentence == f"new waits for {pinned}, to which it is pinned: {reason}."


def test_without_any_node_for_it_the_wait_says_what_to_do():
    hold = answer(nodes=[node("gpus", idle=2)])
    assert hold.explanation.sentence == "new waits: no node has cores for jobs trained on CPU; register one."


# ---- how long jobs take where they share (5.6)


def test_jobs_drain_by_water_filling_and_leave_their_cores_to_the_others():
    jobs = {"small": CpuDemand(10.0, 0.2), "a": CpuDemand(40.0, 9.0), "b": CpuDemand(80.0, 9.0)}
    # 0.2 + 0.4 + 0.4 until 50 s, when `small` is done; a has 20 left, b 60; halves until 90 s; b has 40 left.
    assert completion_times(1.0, jobs) == pytest.approx({"small": 50.0, "a": 90.0, "b": 130.0})


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.01, 10)), max_size=12), st.floats(0.1, 64))
def test_no_job_ends_before_it_could_alone_and_all_before_one_after_the_other(jobs, cores):
    portions_of = {str(i): CpuDemand(core_s, cap) for i, (core_s, cap) in enumerate(jobs)}
    ends = completion_times(cores, portions_of)
    assert ends.keys() == portions_of.keys()
    for name, (core_s, cap) in portions_of.items():
        assert ends[name] >= core_s / min(cap, cores) * (1 - 1e-6)
    one_by_one = sum(p.core_s / min(p.cap, cores) for p in portions_of.values())
    assert max(ends.values(), default=0.0) <= one_by_one * (1 + 1e-6) + 1e-9


def test_without_cores_the_end_is_very_far_but_finite():
    assert completion_times(0.0, {"j": CpuDemand(1.0, 1.0)})["j"] == 1e9


def test_speed_goes_with_the_cores_that_it_was_measured_on():
    jobs = (on_cpu("a", iterations_left=100.0, rate=2.0, share=0.5), on_cpu("b", iterations_left=100.0, rate=2.0))
    snapshot = ClusterSnapshot((cpu_node(),), (*jobs, on_cpu("c", cpu_limit=0.1)), PROFILES)
    known = cpu_demands(snapshot, "c")
    assert known["a"].core_s == 25.0  # 50 s on half a core
    assert known["b"].core_s == pytest.approx(22.5)  # not known on how many: on what c and a leave
    assert known["c"] == CpuDemand(pytest.approx(60.0), math.inf)  # nothing known: ten minutes; its limit will go


def test_a_move_to_its_own_node_leaves_all_as_it_is():
    jobs = tuple(on_cpu(i, iterations_left=100.0, rate=1.0, share=0.5) for i in "ab")
    trip = MovePredictions(ClusterSnapshot((cpu_node(),), jobs, PROFILES), jobs[0]).to("c")
    assert trip.before == trip.after == (100.0, 200.0) and not trip.gains and trip.sure
