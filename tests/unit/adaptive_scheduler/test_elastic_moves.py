"""Promise: moves, jobs on several hosts, deadlines, waiting and aging are weighed as `algorithms.md` 1.3 to 1.11 says.

The names begin with the ambiguity or conflict id where a test is about one.
"""

from dataclasses import replace

import pytest

from adaptive_scheduler.decision import BrokenDecision, Explanation, Finish, Hold, Move, Reshape, Start, check
from adaptive_scheduler.engine import decide
from adaptive_scheduler.models.prediction import RemainingTimes, Tardiness, t_new
from adaptive_scheduler.policies.elastic.algorithms import schedule_incoming, schedule_running
from adaptive_scheduler.profiles.growth import Growth
from adaptive_scheduler.profiles.profiles import Profiles, spread_share
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import Worker
from adaptive_scheduler.tentative_snapshot import after
from tests.unit.adaptive_scheduler.worlds import OVERHEADS, PROFILES, cluster, node, running, speed_rows, waiting

PLAIN = Settings()
MIXED = Profiles.from_rows(
    [*speed_rows(), *speed_rows(gpu_type="K80", speed_up={1: 0.5, 2: 0.85, 4: 1.2})], [{"job_type": "t", **OVERHEADS}]
)


def incoming(world, settings=PLAIN, now=0.0):
    return schedule_incoming(world, world.queue[0], now, settings)


def grow(world, settings=PLAIN, now=0.0):
    return schedule_running(world, now, settings)


def rejected(decision):
    return {(c.job, c.node, c.num_gpus): c.rejected for c in decision.explanation.candidates[1:]}


# ---- sequence D: moves


def test_g8_a_job_moves_to_a_node_that_holds_its_whole_new_count():
    world = cluster(running("j", 2, 9000), nodes=(node("a", used=2), node("b", idle=4), node("c", idle=4)))
    move = grow(world)
    assert isinstance(move, Move)
    assert (move.node, move.num_gpus) == ("b", 4)
    # Checkpoint, exit and start (37 s), launch ended and made anew (137 s), training, and its end (66 s).
    assert move.explanation.candidates[0].job_s == pytest.approx(37 + 137 + 9000 / 2.4 + 66)
    assert move.explanation.sentence == (
        "j moves from 2 GPUs of a to 4 of b and is then predicted to end in 3990.0 s instead of 5360.1 s; "
        "makespan 3990.0 s."
    )


def test_g8_a_node_with_only_the_difference_idle_is_no_target():
    assert grow(cluster(running("j", 2, 9000), nodes=(node("a", used=2), node("b", idle=3)))) is None


def test_g8_a_job_stays_on_its_node_where_that_gives_the_same_count():
    decision = grow(cluster(running("j", 2, 9000), nodes=(node("b", idle=4), node("a", used=2, idle=2))))
    assert (type(decision), decision.node) == (Reshape, "a")


def test_g4_of_equal_gains_the_one_on_the_jobs_own_node_is_made_whatever_the_names():
    profiles = Profiles.from_rows(
        [*speed_rows(), *speed_rows(gpu_type="P100")], [{"job_type": "t", **dict.fromkeys(OVERHEADS, 0)}]
    )
    nodes = node("a", idle=4, gpu_type="P100"), node("z", used=2, idle=2)
    decision = grow(cluster(running("j", 2, 9000, node="z"), nodes=nodes, profiles=profiles))
    assert (type(decision), decision.node) == (Reshape, "z")


def test_a_moved_job_holds_its_old_gpus_until_it_is_gone():
    world = cluster(running("j", 2, 9000), nodes=(node("a", used=2), node("b", idle=4)))
    moved = after(world, grow(world))
    assert (moved.node["a"].idle, moved.node["b"].idle, moved.job["j"].node) == (0, 0, "b")


@pytest.mark.parametrize(("left", "moves"), [(2020, False), (2040, True)])
def test_g6_a_move_must_gain_more_than_it_costs(left, moves):
    # 1 / 1.7 - 1 / 2.4 = 0.1716 s an iteration; 174 s are spent, and as much again must be gained: 2028 iterations.
    world = cluster(running("j", 2, left), nodes=(node("a", used=2), node("b", idle=4)))
    assert bool(grow(world)) == moves


def test_x2_a_job_moves_to_faster_gpus_though_it_gets_no_more_of_them():
    world = cluster(
        running("j", 2, 9000, optional=(2,)), nodes=(node("a", used=2, gpu_type="K80"), node("b", idle=2)),
        profiles=MIXED,
    )  # fmt: skip
    assert (type(grow(world)), grow(world).node, grow(world).num_gpus) == (Move, "b", 2)
    assert grow(world, Settings(moves=False)) is None


def test_x2_a_move_that_would_not_lower_the_makespan_is_never_made_even_as_printed():
    nodes = node("a", used=2), node("b", idle=2, gpu_type="K80"), node("c", idle=2)
    world = cluster(running("j", 2, 9000, optional=(2,)), nodes=nodes, profiles=MIXED)
    assert grow(world) is None
    assert grow(world, Settings(allow_noop=False)) is None


@pytest.mark.parametrize(
    ("job", "target"),
    [({"pinned": "a"}, {}), ({"gpu_type": "K80"}, {}), ({}, {"heard": False}), ({}, {"schedulable": False})],
)
def test_a_job_does_not_move_where_it_must_not(job, target):
    nodes = node("a", used=2), node("b", idle=4, **target)
    assert grow(cluster(running("j", 2, 9000, **job), nodes=nodes)) is None


def test_a_job_does_not_leave_a_node_that_is_not_heard_of():
    nodes = node("a", used=2, heard=False), node("b", idle=4)
    assert grow(cluster(running("j", 2, 9000), nodes=nodes)) is None


def test_a_job_of_unknown_length_moves_only_among_equal_gpus():
    there = node("b", idle=4, gpu_type="K80")
    job = running("j", 1, None, running_s=9000, type="t")
    assert grow(cluster(job, nodes=(node("a", used=1), there), profiles=MIXED)) is None
    assert grow(cluster(job, nodes=(node("a", used=1), there, node("c", idle=2)), profiles=MIXED)).node == "c"


def test_x10_of_two_jobs_that_gain_the_same_the_converged_one_does_not_grow():
    free = Profiles.from_rows(speed_rows(), [{"job_type": "t", **dict.fromkeys(OVERHEADS, 0)}])
    jobs = running("a", 1, growth=Growth("CC")), running("b", 1, growth=Growth("WC"))
    settings = Settings(makespan_scope="pair")
    assert grow(cluster(*jobs, idle=1, profiles=free), settings).job == "b"
    assert grow(cluster(jobs[0], idle=1, profiles=free), settings).job == "a"


def test_x16_what_a_job_took_just_before_an_arrival_it_gives_back_once_it_has_cooled_down():
    grown = cluster(running("j", 2, 9000), idle=2)
    settled = after(grown, grow(grown))
    adjusting = cluster(replace(settled.job["j"], state="adjusting"), waiting(optional=(2,)), nodes=settled.nodes)
    assert "j has an operation under way." in incoming(adjusting).explanation.sentence
    job = replace(settled.job["j"], busy=False, cooling_until=400.0)
    world = cluster(job, waiting(optional=(2,)), nodes=settled.nodes)
    assert isinstance(incoming(world, now=399.0), Hold)
    assert (incoming(world, now=400.0).victim, incoming(world, now=400.0).victim_num_gpus) == ("j", 2)


# ---- 5.4 and X7: deadlines


def test_x7_a_victim_that_would_miss_its_deadline_gives_nothing():
    # J1 ends in 482.7 s as it is and in 691.2 s on 2 GPUs; 5 % of tolerance.
    world = cluster(running("J1", 4, sla_s=600), waiting())
    held = incoming(world)
    assert isinstance(held, Hold)
    assert held.explanation.sentence == (
        "new waits: however it starts, a deadline is missed; at best J1 would miss its deadline by 61.2 s."
    )
    assert incoming(world, Settings(systems=("elastic",))).victim == "J1"
    assert incoming(cluster(running("J1", 4, sla_s=660), waiting())).victim == "J1"


def test_x7_another_victim_is_taken_although_the_makespan_is_longer():
    jobs = running("J1", 2, 1000, (1, 2), sla_s=700), running("J2", 2, 3000), waiting(optional=(1,))
    decision = incoming(cluster(*jobs))
    assert decision.victim == "J2"
    why = {c.victim: c.rejected for c in decision.explanation.candidates}
    assert why["J1"] == "J1 would miss its deadline by 368.0 s"


def test_x7_a_deadline_that_is_missed_anyway_protects_nobody():
    assert incoming(cluster(running("J1", 4, sla_s=400), waiting())).victim == "J1"
    assert incoming(cluster(running("J1", 4, sla_s=600, submit_s=-500), waiting())).victim == "J1"


def test_a_newcomer_with_a_deadline_may_break_one_and_takes_the_least_lateness():
    world = cluster(running("J1", 4, sla_s=600), waiting(sla_s=500))
    start = incoming(world)
    assert (start.victim, start.num_gpus) == ("J1", 2)
    # J1: 691.2 s, 630 s allowed; the newcomer: 526.9 s, 525 s allowed.
    assert start.explanation.sentence.endswith(
        "Every candidate breaks a deadline, this one by least: J1 would miss its deadline by 61.2 s and "
        "new would miss its deadline by 1.9 s; all are late by 63.2 s together."
    )


def test_the_least_lateness_goes_before_the_makespan():
    # J1 would be late by 368.0 s; J2 by 58.0 s, but the makespan is 1272.3 s longer.
    jobs = running("J1", 2, 1000, (1, 2), sla_s=700), running("J2", 2, 3000, sla_s=2900)
    decision = incoming(cluster(*jobs, waiting(optional=(1,), sla_s=100)))
    assert decision.victim == "J2"
    assert decision.explanation.candidates[1].makespan_s < decision.explanation.candidates[0].makespan_s


def test_a_newcomer_that_can_keep_its_deadline_keeps_it_though_the_sum_is_larger():
    jobs = (
        running("J1", 2, 100, (1, 2)),
        running("J2", 4, 100, (1, 2, 4)),
        waiting(left=1000, optional=(1, 2), sla_s=760),
    )
    world = cluster(*jobs, nodes=(node("a", used=6),))
    assert incoming(world).num_gpus == 2
    assert {r for (_, _, n), r in rejected(incoming(world)).items() if n == 1} >= {
        "new would miss its deadline by 376.0 s"
    }


def test_a_deadline_counts_as_broken_only_where_it_held_before():
    world = cluster(running("a", 1, 100, sla_s=100), running("b", 1, 200), waiting(sla_s=50))
    late = Tardiness.estimate(world, RemainingTimes({"a": 166.0, "b": 266.0}), 0.0, PLAIN)
    assert late.total == pytest.approx(61)
    assert late.broken_by({"a": 300.0, "b": 999.0, "new": 60.0}) == pytest.approx({"new": 7.5})


# ---- literal flags


def test_g7_as_printed_only_the_number_of_idle_gpus_counts_on_whatever_hosts():
    nodes = node("a", idle=1, used=1), node("b", idle=3, used=1)
    literal = Settings(placement="count_only")
    world = cluster(waiting(optional=(4,)), nodes=nodes)
    (start,) = decide(world, 0.0, literal)
    assert (start.node, start.workers) == ("b", (Worker("b", 3), Worker("a", 1)))
    with pytest.raises(BrokenDecision, match="may not be spread"):
        check(world, [start])
    assert isinstance(incoming(world), Hold)


def test_g7_as_printed_a_victim_anywhere_makes_up_for_what_is_missing():
    nodes = node("a", idle=1, used=4), node("b", idle=1)
    world = cluster(running("v", 4), waiting(optional=(4,)), nodes=nodes)
    (start,) = decide(world, 0.0, Settings(placement="count_only"))
    assert (start.victim, start.victim_num_gpus) == ("v", 2)
    assert start.workers == (Worker("a", 3), Worker("b", 1))


def test_g12_with_a_batch_per_gpu_more_gpus_need_fewer_iterations():
    weak = PROFILES.scaled("weak")
    assert t_new(weak, waiting(), "V100", 4) == pytest.approx(83 + 25 + 600 / 4 / 2.4 + 66)
    assert t_new(weak, waiting(), "V100", 1) == t_new(PROFILES, waiting(), "V100", 1)
    assert weak.scaled("weak") is weak
    (start,) = decide(cluster(waiting(), idle=4), 0.0, Settings(batch_scaling="weak"))
    assert start.explanation.candidates[0].job_s == pytest.approx(83 + 25 + 62.5 + 66)


def test_g19_waiting_for_the_next_end_competes_where_it_is_asked_for():
    # Now: 1 GPU and 4174 s. In 66.4 s the 3 of `soon` are free too: 1906 s on all four.
    jobs = running("soon", 3, 1, (3,)), waiting(left=4000, optional=(1, 4))
    world = cluster(*jobs, idle=1, used=3)
    assert isinstance(incoming(world), Start)
    held = incoming(world, Settings(compare_with_waiting=True))
    assert isinstance(held, Hold)
    assert held.explanation.sentence.startswith(
        "new waits: 4 GPUs of a once the next job has ended lead to makespan 19"
    )
    assert held.explanation.candidates[1].rejected.startswith("makespan 22")
    late = cluster(running("late", 3, 90_000, (3,)), jobs[1], idle=1, used=3)
    assert isinstance(incoming(late, Settings(compare_with_waiting=True)), Start)


# ---- aging

BIG = waiting("big", optional=(8,), submit_s=-90_000)


def test_a_job_that_has_waited_long_keeps_the_node_where_it_comes_nearest():
    grower, small = running("r", 1, 9000, node="b"), waiting("small", optional=(1,), submit_s=-1)
    nodes = node("a", idle=2, used=6), node("b", idle=5, used=3)
    world = cluster(grower, BIG, small, nodes=nodes)
    start, hold = decide(world, 0.0)
    assert (type(start), start.job, start.node) == (Start, "small", "a")
    assert (type(hold), hold.job) == (Hold, "big")
    # Before its time it keeps nothing from anybody.
    young = cluster(grower, replace(BIG, submit_s=-86_399), small, nodes=nodes)
    assert [d.job for d in decide(young, 0.0)] == ["small", "r", "big"]
    assert [d.job for d in decide(world, 0.0, Settings(reserve_after_s=0))] == ["small", "r", "big"]


def test_those_who_are_held_back_are_told_for_whom():
    small = waiting("small", optional=(1,), submit_s=-1)
    _, held = decide(cluster(BIG, small, idle=5, used=3), 0.0)
    assert held.explanation.sentence == "small waits: node a is kept for big, which has waited 90000.0 s."
    assert [c.rejected for c in held.explanation.candidates] == ["a is kept for big"]
    nodes = node("a", idle=5, used=3), node("b", used=8)
    _, held = decide(cluster(BIG, small, nodes=nodes), 0.0)
    assert held.explanation.sentence.endswith("Node a is kept for big, which has waited 90000.0 s.")


def test_the_long_waiting_job_gets_its_node_as_soon_as_that_is_free():
    urgent = waiting("urgent", optional=(1,), submit_s=-5, sla_s=900)
    start, *_ = decide(cluster(urgent, BIG, idle=8, used=0), 0.0)
    assert (start.job, start.num_gpus) == ("big", 8)


def test_only_the_longest_waiting_job_keeps_a_node_and_never_one_that_is_too_small_for_it():
    other = waiting("other", optional=(4,), submit_s=-89_000)
    nodes = node("a", idle=3, used=1), node("b", idle=2, used=6), node("c", idle=3, used=1)
    small = waiting("small", optional=(2,), submit_s=0)
    decisions = decide(cluster(BIG, other, small, nodes=nodes), 0.0)
    assert [(type(d), d.job) for d in decisions] == [(Start, "small"), (Hold, "big"), (Hold, "other")]
    assert decisions[0].node == "a"
    hopeless = waiting("big", optional=(16,), submit_s=-90_000)
    assert decide(cluster(hopeless, small, nodes=nodes), 0.0)[0].job == "small"


# ---- jobs on several hosts

PAIR = node("a", idle=3, used=1), node("b", idle=2, used=2), node("c", idle=3, used=1, gpu_type="K80")


def test_a_count_that_no_host_holds_is_spread_over_as_few_as_possible_of_one_type():
    start = incoming(cluster(waiting(optional=(4,), max_workers=2), nodes=PAIR, profiles=MIXED))
    assert start.workers == (Worker("a", 3), Worker("b", 1))
    job_s = 83 + 25 + 600 / 2.4 / 0.94 + 66
    assert start.explanation.candidates[0].job_s == pytest.approx(job_s)
    assert start.explanation.candidates[0].low_confidence  # nobody has measured it on two hosts
    assert start.explanation.sentence.startswith("new starts on 4 GPUs, 3 on a and 1 on b; predicted to end in")
    assert isinstance(incoming(cluster(waiting(optional=(4,)), nodes=PAIR, profiles=MIXED)), Hold)


def test_a_count_that_one_host_holds_is_not_spread():
    nodes = node("a", idle=3, used=1), node("b", idle=4)
    start = incoming(cluster(waiting(optional=(4,), max_workers=2), nodes=nodes))
    assert (start.node, start.workers) == ("b", ())


def test_a_job_larger_than_any_host_starts_on_two_or_is_told_that_it_never_can():
    nodes = node("a", idle=4), node("b", idle=4)
    start = incoming(cluster(waiting(optional=(8,), max_workers=2), nodes=nodes))
    assert start.workers == (Worker("a", 4), Worker("b", 4))
    held = incoming(cluster(waiting(optional=(16,), max_workers=2), nodes=nodes))
    assert "it wants more GPUs than any node has" in held.explanation.sentence


def test_a_speed_measured_on_two_hosts_is_used_as_it_is():
    row = {"job_type": "t", "gpu_type": "V100", "num_gpus": 4, "seconds_per_iteration": 0.5, "hosts": 2}
    profiles = Profiles.from_rows([*speed_rows(), row], [{"job_type": "t", **OVERHEADS}])
    assert profiles.speed("t", "V100", 4, 2).seconds == 0.5
    assert profiles.speed("t", "V100", 4).seconds == pytest.approx(1 / 2.4)
    assert profiles.speed("t", "V100", 2, 2).seconds == pytest.approx(1 / 1.7 / 0.94)


def test_speed_falls_with_every_further_host():
    assert [round(spread_share(hosts), 2) for hosts in (1, 2, 3, 4, 8)] == [1.0, 0.94, 0.76, 0.71, 0.6]


def test_a_job_grows_onto_a_further_host_and_then_on_those_it_has():
    world = cluster(running("j", 2, 9000, (2, 4, 6), max_workers=2), nodes=(node("a", used=2), node("b", idle=2)))
    grown = grow(world)
    assert (type(grown), grown.node, grown.workers) == (Reshape, "a", (Worker("a", 2), Worker("b", 2)))
    # A launch more, on the new host, is waited for.
    assert grown.explanation.candidates[0].job_s == pytest.approx(83 + 37 + 9000 / 2.4 / 0.94 + 66)
    spread = running("j", 4, 90_000, (2, 4, 6), max_workers=2, workers=grown.workers)
    nodes = node("a", used=2, idle=1), node("b", used=2, idle=1)
    assert grow(cluster(spread, nodes=nodes)).workers == (Worker("a", 3), Worker("b", 3))


def test_a_spread_job_comes_together_where_that_gains():
    spread = running("j", 4, 90_000, (4,), max_workers=2, workers=(Worker("a", 2), Worker("b", 2)))
    nodes = node("a", used=2), node("b", used=2), node("c", idle=4)
    move = grow(cluster(spread, nodes=nodes))
    assert (type(move), move.node, move.num_gpus) == (Move, "c", 4)
    assert "moves from 4 GPUs, 2 on a and 2 on b, to 4 of c" in move.explanation.sentence
    assert grow(cluster(running("j", 4, 90_000, (4,)), nodes=(node("a", used=4), node("c", idle=4)))) is None


def test_a_spread_victim_gives_on_one_host_and_keeps_some_on_each():
    victim = running("v", 4, 1000, (1, 2, 3, 4), max_workers=2, workers=(Worker("a", 1), Worker("b", 3)))
    world = cluster(victim, waiting(optional=(1,)), nodes=(node("a", used=1), node("b", used=3)))
    start = incoming(world)
    assert (start.node, start.victim, start.victim_num_gpus) == ("b", "v", 3)
    assert after(world, start).job["v"].workers == (Worker("a", 1), Worker("b", 2))
    with pytest.raises(BrokenDecision, match="has 1 GPUs on a and cannot give 1 of them"):
        check(world, [Start("new", "a", 1, Explanation("", ""), "v", 3)])


def test_what_a_spread_victim_is_left_with_is_as_sure_as_its_speed_on_several_hosts():
    victim = running("v", 4, 1000, (2, 4), max_workers=2, workers=(Worker("a", 1), Worker("b", 3)))
    world = cluster(victim, waiting(optional=(2,)), nodes=(node("a", used=1), node("b", used=3)))
    assert incoming(world).explanation.candidates[0].low_confidence, "nobody measured it on two hosts"
    row = {"job_type": "t", "gpu_type": "V100", "num_gpus": 2, "seconds_per_iteration": 0.6, "hosts": 2}
    measured = Profiles.from_rows([*speed_rows(), {**row, "origin": "measured"}], [{"job_type": "t", **OVERHEADS}])
    assert not incoming(replace(world, profiles=measured)).explanation.candidates[0].low_confidence


@pytest.mark.parametrize("others", [(), (node("b", used=2, heard=False),)])
def test_a_spread_job_does_not_grow_while_one_of_its_nodes_is_not_heard_of_or_gone(others):
    spread = running("j", 4, 90_000, (4, 6), max_workers=2, workers=(Worker("a", 2), Worker("b", 2)))
    nodes = node("a", used=2, idle=2), *others
    assert [d for d in decide(cluster(spread, nodes=nodes), 0.0) if isinstance(d, Reshape | Move)] == []
    heard = *nodes[:1], node("b", used=2)
    assert grow(cluster(spread, nodes=heard)).workers == (Worker("a", 4), Worker("b", 2))


def test_an_operator_brings_a_spread_job_together_on_its_first_node():
    job = running("w", 4, workers=(Worker("a", 2), Worker("b", 2)), max_workers=2, wanted=2)
    (decision,) = decide(cluster(job, nodes=(node("a", used=2), node("b", used=2))), 0.0)
    assert (decision.node, decision.num_gpus, decision.workers) == ("a", 2, ())


def test_a_pinned_job_starts_on_its_node_or_is_told_that_it_cannot():
    nodes = node("a", idle=4), node("b", idle=1)
    assert incoming(cluster(waiting(pinned="b"), nodes=nodes)).node == "b"
    held = incoming(cluster(waiting(pinned="gone"), nodes=nodes))
    assert held.explanation.sentence == ("new waits: it is pinned to gone, which has no GPUs; pin it to another node.")


# ---- target accuracy


def test_a_job_ends_when_its_measured_value_is_there_and_says_so():
    job = running("j", 2, 500, target_reached=True, target=0.93, value=0.9312, epoch_iterations=200)
    (finish,) = decide(cluster(job), 0.0)
    assert isinstance(finish, Finish)
    assert finish.explanation.sentence == (
        "j has reached its target: 0.9312, where 0.93 was wanted, 2.5 epochs before the predicted end. "
        "It ends with a checkpoint."
    )
    assert decide(cluster(running("j", 2, 0)), 0.0) == ()  # never by the prediction
