"""Promise: Voda's policies share out GPUs as their authors describe, and the world carries that out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from adaptive_scheduler.decision import Requeue, Reshape, Start, check
from adaptive_scheduler.profiles.profiles import Profiles
from reshape_papers import comparison_policies
from reshape_papers.comparison_policies import voda
from reshape_papers.comparison_policies.allotment import AllotmentRequest
from reshape_papers.comparison_policies.allotment_policy import allotment_requests, towards
from reshape_papers.comparison_policies.tiresias_queues import PROMOTE, THRESHOLD_S, TiresiasQueues
from simulator.cluster import SimulatedCluster
from simulator.scenario import Costs, NoWorkload, PolicySetup, Submission, Workload
from tests.unit.adaptive_scheduler.worlds import cluster, node, running, speed_rows, waiting
from tests.unit.papers.simulated_runs import runs

LINEAR = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
STEEP = {1: 1.0, 2: 1.9, 3: 2.7, 4: 3.4}
FLAT = {1: 1.0, 2: 1.2, 3: 1.3, 4: 1.35}
FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def ask(job_id, submit=0.0, left=1000.0, speed=STEEP, counts=(1, 2, 3, 4), asked=2):
    return AllotmentRequest(job_id, submit, counts, asked, 0, 0.0, lambda n: left / speed[n])


def shared(rule, jobs, gpus, queues=None):
    return {job: n for job, n in rule(jobs, gpus, queues or TiresiasQueues()).items() if n}


# ---- the rules


def test_elastic_fifo_gives_the_first_comers_one_each_and_the_rest_goes_round():
    jobs = [ask("a"), ask("b", 1), ask("c", 2)]
    assert shared(voda.elastic_fifo, jobs, 2) == {"a": 1, "b": 1}
    assert shared(voda.elastic_fifo, jobs, 7) == {"a": 3, "b": 2, "c": 2}
    assert shared(voda.elastic_fifo, jobs, 99) == {"a": 4, "b": 4, "c": 4}


def test_elastic_srjf_serves_the_shortest_remaining_job_first():
    jobs = [ask("long", left=900), ask("short", left=100), ask("middle", left=500)]
    assert shared(voda.elastic_srjf, jobs, 2) == {"short": 1, "middle": 1}
    assert shared(voda.elastic_srjf, jobs, 4) == {"short": 2, "middle": 1, "long": 1}


def test_ffdl_reaches_the_largest_sum_of_speed_ups_that_any_sharing_has():
    jobs = [ask("a", speed=STEEP), ask("b", speed=FLAT), ask("c", speed=LINEAR)]
    for gpus in range(3, 13):
        ours = shared(voda.ffdl, jobs, gpus)
        speeds = {"a": STEEP, "b": FLAT, "c": LINEAR}
        best = max(
            sum(speeds[j][n] for j, n in zip("abc", counts, strict=True))
            for counts in product((1, 2, 3, 4), repeat=3)
            if sum(counts) <= gpus
        )
        assert sum(ours.values()) <= gpus
        assert sum(speeds[j][n] for j, n in ours.items()) == pytest.approx(best)


def test_ffdl_runs_those_that_came_first_where_not_all_can_run():
    jobs = [ask(str(i), i) for i in range(5)]
    assert shared(voda.ffdl, jobs, 3) == {"0": 1, "1": 1, "2": 1}


def test_afs_l_takes_shorter_jobs_first_while_gpus_are_scarce():
    jobs = [ask("long", left=900), ask("short", left=100), ask("middle", left=500)]
    assert shared(voda.afs_l, jobs, 2) == {"short": 1, "middle": 1}


def test_afs_l_gives_the_next_gpu_to_the_longer_job_only_where_it_gains_more_by_it():
    flat_short = [ask("short", left=100, speed=FLAT), ask("long", left=900, speed=LINEAR)]
    assert shared(voda.afs_l, flat_short, 4) == {"short": 1, "long": 3}
    alike = [ask("short", left=100), ask("long", left=900)]
    given = shared(voda.afs_l, alike, 4)
    assert given["short"] >= given["long"]


def test_elastic_tiresias_serves_the_upper_queue_first_and_compacts_the_lower_one_when_many_wait():
    queues = TiresiasQueues()
    world = cluster(running("old", 4, optional=(1, 2, 3, 4)), nodes=(node(used=4, idle=0),))
    queues.look(world, 0.0)
    queues.look(world, THRESHOLD_S / 4)
    assert queues.level("old") == 1
    jobs = [ask("old"), ask("new", 1)]
    assert shared(voda.elastic_tiresias, jobs, 2, queues) == {"new": 2}
    # Four wait: the old job keeps its two. Five wait: it is left one, and the other goes to one of them.
    many = [ask("old"), *(ask(f"n{i}", i, asked=4) for i in range(4))]
    assert shared(voda.elastic_tiresias, many, 3, queues)["old"] == 2
    more = [ask("old"), *(ask(f"n{i}", i, asked=4) for i in range(5))]
    assert shared(voda.elastic_tiresias, more, 3, queues) == {"old": 1, "n0": 1, "n1": 1}


def test_no_rule_gives_more_gpus_than_there_are_or_a_count_that_is_not_allowed():
    jobs = [ask("a", counts=(2, 4), asked=2), ask("b", 1, counts=(1, 2), speed=FLAT), ask("c", 2, counts=(4,), asked=4)]
    for rule, gpus in product(voda.RULES.values(), range(9)):
        given = rule(jobs, gpus, TiresiasQueues())
        assert sum(given.values()) <= gpus
        assert all(given.get(job.id, 0) in (0, *job.counts) for job in jobs)


# ---- the queues


def test_a_job_falls_to_the_lower_queue_after_its_gpu_time_and_rises_after_waiting_long():
    queues, two = TiresiasQueues(), running("j", 2)
    assert not queues.look(cluster(two), 0.0)
    assert queues.next_change_s == THRESHOLD_S / 2
    assert not queues.look(cluster(two), THRESHOLD_S / 2 - 1)
    assert queues.look(cluster(two), THRESHOLD_S / 2)
    assert queues.level("j") == 1
    halted_at = THRESHOLD_S / 2
    queues.look(cluster(waiting("j")), halted_at)
    rises_at = halted_at + PROMOTE * THRESHOLD_S / 2
    assert queues.next_change_s == rises_at
    assert not queues.look(cluster(waiting("j")), rises_at - 1)
    assert queues.look(cluster(waiting("j")), rises_at)
    assert queues.level("j") == 0


def test_a_job_that_is_started_again_rises_at_once_as_in_voda():
    queues = TiresiasQueues()
    queues.look(cluster(running("j", 2)), 0.0)
    queues.look(cluster(running("j", 2)), THRESHOLD_S / 2)
    queues.look(cluster(waiting("j")), 1000.0)
    queues.look(cluster(running("j", 2)), 1500.0)
    assert queues.level("j") == 1
    assert queues.look(cluster(running("j", 2)), 1505.0)
    assert queues.level("j") == 0


# ---- carrying them out


def test_who_gets_fewer_shrinks_or_leaves_before_others_start_on_the_gpus():
    world = cluster(running("a", 4), running("b", 2), waiting("c"), nodes=(node(idle=2, used=6),))
    decisions = towards(world, {"c": 4, "a": 2}, "test")
    check(world, decisions)
    assert [type(d) for d in decisions] == [Reshape, Requeue, Start]
    assert (decisions[0].job, decisions[0].num_gpus) == ("a", 2)
    assert decisions[1].job == "b"
    assert decisions[2].num_gpus == 2  # all that is idle now


def test_a_job_under_an_operation_is_left_alone():
    world = cluster(running("a", 4, busy=True), nodes=(node(idle=4, used=4),))
    assert towards(world, {"a": 1}, "test") == ()


def test_each_decision_says_why():
    world = cluster(running("a", 4), waiting("c"), nodes=(node(idle=2, used=4),))
    assert all(d.explanation.sentence.endswith(".") for d in towards(world, {"a": 2, "c": 2}, "test"))


def test_a_job_asks_for_the_largest_allowed_count_up_to_what_its_user_named():
    world = cluster(waiting("a"), nodes=(node(idle=8),))
    assert [a.asked for a in allotment_requests(world, 0.0, {"a": 3})] == [2]
    assert [a.asked for a in allotment_requests(world, 0.0, {})] == [1]


def world_of(name, jobs, gpus=4, limit_s=None):
    profiles = Profiles.from_rows(speed_rows(gpu_type="V100", speed_up=LINEAR))
    workload = Workload("test", 0, tuple(jobs), (node(idle=gpus),), ())
    plan = comparison_policies.PLANNERS[name](workload)
    if limit_s is not None:
        plan = voda.Voda(name, voda.RULES[name], workload, limit_s)
    return SimulatedCluster(workload, PolicySetup(name, plan, FREE, profiles))


def submit(job_id, arrival, iterations):
    return Submission(job_id, "t", arrival, (1, 2, 3, 4), iterations, 2)


def test_a_newcomer_waits_until_two_minutes_after_the_last_sharing():
    outcome = world_of("elastic-fifo", [submit("a", 0.0, 4000), submit("b", 10.0, 100)]).run()
    first, second = outcome.jobs
    assert first.began_s == 0.0
    assert second.began_s == 120.0
    # a: 120 s on 4, then on 2 until b is done after 50 s; b's end is acted on 120 s after the last sharing
    assert second.finished_s == pytest.approx(170.0)
    assert first.finished_s == pytest.approx(240.0 + (4000 - 480 - 240) / 4)


def test_without_the_limit_every_arrival_and_end_is_acted_on_at_once():
    outcome = world_of("elastic-fifo", [submit("a", 0.0, 4000), submit("b", 10.0, 100)], limit_s=0.0).run()
    assert outcome.jobs[1].began_s == 10.0
    assert outcome.jobs[0].finished_s == pytest.approx(60.0 + (4000 - 40 - 100) / 4)


def test_a_job_that_others_come_before_goes_back_to_the_queue_and_keeps_its_work():
    jobs = [submit("long", 0.0, 1000), *(submit(f"s{i}", 1.0, 300) for i in range(4))]
    outcome = world_of("elastic-srjf", jobs, gpus=4).run()
    long = outcome.jobs[0]
    assert long.preempts == 1
    # 480 done on 4 GPUs by 120 s; the short ones end together at 420 s
    assert long.finished_s == pytest.approx(420.0 + (1000 - 480) / 4)


def test_the_queues_of_tiresias_change_without_any_arrival_or_end():
    jobs = [replace(submit("a", 0.0, 9000), fixed_gpus=4), replace(submit("b", 1.0, 400), fixed_gpus=4)]
    outcome = world_of("elastic-tiresias", jobs, gpus=4).run()
    # a has had its 1800 GPU-seconds after 450 s on 4 GPUs
    assert outcome.jobs[1].began_s == pytest.approx(THRESHOLD_S / 4, abs=5.0)


# ---- by name


def test_every_policy_runs_a_workload_to_its_end_by_its_name():
    for name in voda.PLANNERS:
        (run,) = runs("case-study", 1, [name])
        assert run.policy == name
        assert run.row["makespan_s"] >= 525.0 - 1e-6


def test_a_name_that_nobody_knows_is_answered_with_those_that_are():
    with pytest.raises(NoWorkload, match=r"take one of .*sidecar.*afs-l"):
        list(runs("case-study", 1, ["nobody"]))
