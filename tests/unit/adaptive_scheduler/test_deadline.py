"""Seed 003 (`algorithms.md` 4): expected times, waits, alerts, the order of the queue, and who gives way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from worlds import PROFILES, cluster, node, running, waiting

from adaptive_scheduler.decision import Hold, Requeue, Start, check
from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies import deadline
from adaptive_scheduler.policies.deadline_feasibility import alert, diagnose, heaviness, wait_left_s
from adaptive_scheduler.profiles.observations import Observation, Observations, percentile
from adaptive_scheduler.profiles.profiles import LARGEST, Profiles
from adaptive_scheduler.settings import Deadlines, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Task, Worker
from adaptive_scheduler.tentative_snapshot import after

ALONE = Settings(systems=("deadline",))
ELASTIC = Settings(systems=("elastic", "deadline"))


def settings(**fields):
    return replace(ALONE, deadlines=Deadlines(**fields))


def cpu_node(name="n", cores=10.0, **more):
    return Node(name, "", cores=cores, **more)


def on_cpu(job_id, state="submitted", cores=0.0, **more):
    tasks = more.pop("tasks", (Task("train", cores=cores),))
    return Job(job_id, "cpu", state, (0,), tasks=tasks, **more)


def overdue(job_id="h", cores=6.0, **more):
    fields = {"node": "n", "expected_s": 100.0, "task_s": 120.0, "estimate_s": 150.0} | more
    return on_cpu(job_id, "running", cores, **fields)


def world(*jobs, nodes=(), rows=()):
    return ClusterSnapshot(tuple(nodes) or (cpu_node(),), tuple(jobs), PROFILES, Observations.from_rows(rows))


def row(cores=0.0, execution_s=10.0, gpus=0, memory=0.0):
    return Observation(cores, memory, gpus, execution_s)


THREE = (row(1, 10), row(2, 20), row(4, 50))


def diagnosed(job, snapshot=None, chosen=ALONE):
    return diagnose(job, snapshot or world(job), chosen)


# Algorithm 1: the vectors of 4.5


def test_a_target_of_50_for_45_seconds_of_work_allows_a_wait_of_seven_and_a_half():
    found = diagnosed(on_cpu("j", sla_s=50, estimate_s=45))
    assert (found.te_s, found.tw_s, found.minimum_target_s) == (45, 7.5, None)
    assert found.tw_safe_s == 5, "D9: without the tolerance"
    assert alert(on_cpu("j", sla_s=50, estimate_s=45), found) == ""


def test_a_target_of_50_for_60_seconds_of_work_is_answered_with_the_smallest_that_would_hold():
    job = on_cpu("j", sla_s=50, estimate_s=60)
    found = diagnosed(job)
    assert found.tw_s == -7.5 and found.minimum_target_s == pytest.approx(57.142857)
    assert "57.2 s" in alert(job, found)
    assert diagnosed(replace(job, sla_s=57.2)).minimum_target_s is None, "what the sentence says does hold"


def test_two_tasks_are_looked_up_each_and_added():
    job = on_cpu("j", sla_s=100, tasks=(Task("a", cores=1.5), Task("b", cores=3)))
    found = diagnosed(job, world(job, rows=THREE))
    assert found.te_s == 70 and found.dominant == "cores" and not found.low_confidence


def test_a_job_without_a_deadline_may_wait_for_ever():
    assert diagnosed(on_cpu("j", estimate_s=10)).tw_s == math.inf


def test_d9_what_volcano_is_told_leaves_the_tolerance_for_later_and_counts_from_now():
    job = on_cpu("j", sla_s=50, estimate_s=45, submit_s=100.0)
    assert wait_left_s(job, diagnosed(job), 102.0) == 3.0
    assert wait_left_s(job, diagnosed(job), 106.0) == 1.0, "only the tolerance is left"
    assert wait_left_s(job, diagnosed(job), 108.0) is None, "lost: it is run as if it had no deadline"
    unknown = on_cpu("j", sla_s=50, submit_s=100.0)
    assert wait_left_s(unknown, diagnosed(unknown), 110.0) == 40.0
    assert wait_left_s(on_cpu("j"), diagnosed(on_cpu("j")), 110.0) is None


def test_a_job_of_which_nothing_is_known_is_never_alerted():
    job = on_cpu("j", sla_s=1)
    found = diagnosed(job)
    assert found.te_s is None and alert(job, found) == ""


def test_a_waiting_gpu_job_without_observations_is_expected_to_take_the_quickest_way_its_profile_knows():
    job = waiting("j", left=240, sla_s=300)
    found = diagnosed(job, cluster(job))
    assert found.te_s == pytest.approx(83 + 25 + 100 + 66), "four GPUs are 2.4 times as fast, and its launch and end"


def test_a_running_gpu_job_is_expected_to_go_on_as_it_is():
    job = running("j", 2, left=170)
    assert diagnosed(job, cluster(job)).te_s == pytest.approx(100 + 66)


def test_a_running_cpu_job_without_observations_goes_on_at_its_rate():
    assert diagnosed(on_cpu("j", "running", iterations_left=30, rate=2.0)).te_s == 15


# D1 to D4, D11


@pytest.mark.parametrize(
    "job",
    [
        on_cpu("j", sla_s=10.0, estimate_s=1.7e308),
        on_cpu("j", sla_s=10.0, iterations_left=1e308, rate=0.5),
        waiting("j", left=1e308, sla_s=10.0),
    ],
)
def test_a_job_that_would_take_for_ever_is_alerted_and_breaks_nothing(job):
    found = diagnosed(job, world(job, nodes=[node(used=4)]))
    assert found.te_s <= 2 * LARGEST and "cannot hold its deadline" in alert(job, found)


def test_a_job_measured_on_several_nodes_only_is_expected_to_go_on_as_it_is_there():
    row = {"job_type": "t", "gpu_type": "V100", "num_gpus": 4, "seconds_per_iteration": 0.5, "hosts": 2}
    job = running("j", 4, 100, workers=(Worker("a", 2), Worker("b", 2)))
    nodes, profiles = (node("a", used=2), node("b", used=2)), Profiles.from_rows([row])
    found = diagnosed(job, cluster(job, nodes=nodes, profiles=profiles))
    assert (found.te_s, found.low_confidence) == (50.0 + profiles.overheads("t").finish, False)


def test_d1_the_dominant_resource_is_that_of_the_largest_share_of_three_and_ties_go_to_gpus():
    nodes = [node(idle=4), cpu_node(cores=8, memory=100)]
    tasks = {"gpus": Task("t", cores=1, memory=10, gpus=2), "cores": Task("t", 4, 10), "memory": Task("t", 1, 90)}
    for resource, task in tasks.items():
        job = on_cpu("j", tasks=(task,))
        assert diagnosed(job, world(job, nodes=nodes)).dominant == resource
    tie = on_cpu("j", tasks=(Task("t", cores=4, memory=50, gpus=2),))
    assert diagnosed(tie, world(tie, nodes=nodes)).dominant == "gpus"


def test_d1_as_printed_the_gpu_table_is_used_only_where_cpu_and_memory_shares_are_equal():
    nodes = [node(idle=4), cpu_node(cores=8, memory=100)]
    rows = [row(4, 11, gpus=2, memory=50), row(4, 22, memory=50)]
    printed = settings(gpu_branch="tie")
    equal = on_cpu("j", tasks=(Task("t", cores=4, memory=50),))
    assert diagnosed(equal, world(equal, nodes=nodes, rows=rows), printed).te_s == 11
    assert diagnosed(equal, world(equal, nodes=nodes, rows=rows)).te_s == 22, "resolved: it wants no GPU"
    wants = Job("j", "t", "submitted", (2,), tasks=(Task("t", cores=4, gpus=2),))
    assert diagnosed(wants, world(wants, nodes=nodes, rows=rows), printed).dominant == "cores"
    assert diagnosed(wants, world(wants, nodes=nodes, rows=rows)).te_s == 11


def test_d2_as_printed_one_lookup_for_the_whole_job_finds_one_larger_task():
    job = on_cpu("j", tasks=(Task("a", cores=1), Task("b", cores=2)))
    assert diagnosed(job, world(job, rows=THREE), settings(te="job_lookup")).te_s == 50, "3 cores: the row of 4"
    assert diagnosed(job, world(job, rows=THREE)).te_s == 30


def test_d3_replicas_count_in_the_share_and_closed_nodes_do_not():
    nodes = [cpu_node(cores=4), cpu_node("closed", cores=100, schedulable=False)]
    assert heaviness(on_cpu("j", tasks=(Task("t", cores=0.5, replicas=4),)), world(nodes=nodes)) == 0.5


def test_d3_a_job_that_asks_for_what_no_node_has_is_told_so():
    job = waiting("j")
    found = diagnosed(job, world(job))
    assert found.lacking == "gpus" and "register a node" in alert(job, found)


def test_d4_the_next_higher_row_counts_and_above_all_rows_the_largest_with_low_confidence():
    table = Observations.from_rows(THREE)
    assert table.lookup(False, "cores", 2, 0.9) == (20, False)
    assert table.lookup(False, "cores", 2.01, 0.9) == (50, False)
    assert table.lookup(False, "cores", 9, 0.9) == (50, True)
    assert table.lookup(True, "cores", 1, 0.9) is None, "no row with GPUs"


def test_d4_of_several_rows_the_ninetieth_percentile_counts():
    rows = [row(1, t) for t in range(10, 110, 10)]
    assert Observations.from_rows(rows).lookup(False, "cores", 1, 0.9) == (90, False)
    assert percentile((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 0.7) == 7 and percentile((5,), 0.0) == 5


def test_a_task_under_way_is_expected_to_take_what_those_took_that_ran_longer():
    table = Observations.from_rows([row(1, 10), row(1, 20), row(1, 100)])
    assert table.lookup(False, "cores", 1, 0.5, ran_s=15) == (5, False)
    assert table.lookup(False, "cores", 1, 0.5, ran_s=30) == (70, False)
    assert table.lookup(False, "cores", 1, 0.5, ran_s=100) == (100, True), "longer than all: as long again"


def test_only_the_present_task_has_run_already():
    job = on_cpu("j", "running", task_s=15, tasks=(Task("a", cores=2), Task("a", cores=2)))
    assert diagnosed(job, world(job, rows=THREE)).te_s == 25


def test_d11_rows_that_took_no_time_are_dropped():
    assert Observations.from_rows([row(1, 0), row(1, -5), row(1, 7)]).lookup(False, "cores", 1, 0.9) == (7, False)


# X13: the order of the queue


def ids(jobs):
    return [job.id for job in jobs]


def test_x13_the_queue_is_sorted_by_latest_start_and_jobs_without_a_deadline_age():
    jobs = [
        on_cpu("none-old", submit_s=-86350),
        on_cpu("none-new", submit_s=0),
        on_cpu("far", sla_s=1000, estimate_s=10),
        on_cpu("near", sla_s=100, estimate_s=70),
    ]
    order = deadline.in_order(world(*jobs), 0, ALONE)
    assert ids(order) == ["near", "none-old", "far", "none-new"]


def test_x13_equal_latest_starts_go_by_submission_and_then_by_id():
    jobs = [
        on_cpu("b", sla_s=100, estimate_s=50),
        on_cpu("a", sla_s=100, estimate_s=50),
        on_cpu("c", submit_s=-1, sla_s=101, estimate_s=50),
    ]
    assert ids(deadline.in_order(world(*jobs), 0, ALONE)) == ["c", "a", "b"]


def test_d9_the_order_is_by_latest_start_without_the_tolerance_or_as_printed_with_it():
    jobs = [on_cpu("long", sla_s=1000, estimate_s=500), on_cpu("short", sla_s=530, estimate_s=10)]
    assert ids(deadline.in_order(world(*jobs), 0, ALONE)) == ["long", "short"]
    assert deadline.latest_start_s(jobs[0], diagnosed(jobs[0]), ALONE) == 500
    assert deadline.latest_start_s(jobs[0], diagnosed(jobs[0]), settings(order_by="paper")) == 550
    assert ids(deadline.in_order(world(*jobs), 0, settings(order_by="paper"))) == ["short", "long"]


def test_a_job_whose_deadline_is_lost_goes_behind_those_that_can_still_hold_theirs():
    jobs = [on_cpu("lost", sla_s=50, estimate_s=60), on_cpu("can", sla_s=500, estimate_s=60)]
    assert ids(deadline.in_order(world(*jobs), 0, ALONE)) == ["can", "lost"]
    assert ids(deadline.in_order(world(*jobs), 0, settings(order_by="paper"))) == ["lost", "can"]


def test_without_the_deadline_system_the_queue_stays_first_come_first_served():
    jobs = [on_cpu("old", submit_s=-5), on_cpu("urgent", sla_s=10, estimate_s=9)]
    assert ids(deadline.in_order(world(*jobs), 0, Settings(systems=("elastic",)))) == ["old", "urgent"]


def test_d7_a_job_that_gave_way_is_left_out_while_those_it_gave_way_to_still_wait():
    gave, light = on_cpu("gave", yields_to=("light", "gone")), on_cpu("light", submit_s=5)
    assert ids(deadline.in_order(world(gave, light), 9, ALONE)) == ["light"]
    started = replace(light, state="running", node="n")
    assert ids(deadline.in_order(world(gave, started), 9, ALONE)) == ["gave"]


def test_d7_jobs_that_gave_way_to_each_other_do_not_wait_for_ever():
    a, b = on_cpu("a", yields_to=("b",)), on_cpu("b", yields_to=("a",))
    assert ids(deadline.in_order(world(a, b), 0, ALONE)) == ["a", "b"]
    chain = [on_cpu("a", yields_to=("b",)), on_cpu("b", yields_to=("a", "c")), on_cpu("c")]
    assert ids(deadline.in_order(world(*chain), 0, ALONE)) == ["c"]


# alerts


def held(decisions, job_id):
    return next(d.explanation.sentence for d in decisions if isinstance(d, Hold) and d.job == job_id)


def full(*jobs):
    """Nobody can start: all GPUs are in use by a job that gives none."""
    return cluster(running("r", 8, optional=(8,)), *jobs)


def test_an_infeasible_deadline_is_said_where_the_job_waits():
    sentence = held(decide(full(waiting("j", sla_s=50)), 0, ALONE), "j")
    assert "j waits" in sentence and "smallest target that would hold" in sentence


def test_a_deadline_that_the_wait_has_cost_is_said_too():
    job = waiting("j", left=240, sla_s=300)
    assert "expected to miss its deadline by 174.0 s" in held(decide(full(job), 200, ALONE), "j")
    assert "deadline by" not in held(decide(full(job), 10, ALONE), "j")


def test_without_the_deadline_system_nothing_is_said_of_deadlines():
    sentence = held(decide(full(waiting("j", sla_s=50)), 0, Settings(systems=("elastic",))), "j")
    assert "target" not in sentence


def test_a_job_that_gave_way_says_for_whom_it_waits():
    snapshot = full(waiting("gave", yields_to=("light",)), waiting("light"))
    assert "until light has started: it gave way to it" in held(decide(snapshot, 0, ALONE), "gave")


# Algorithm 2: an overdue job goes back to the queue


def light(job_id="l", cores=5.0, estimate_s=20.0, **more):
    return on_cpu(job_id, cores=cores, estimate_s=estimate_s, **more)


AS_PRINTED = settings(yield_by="stop")  # whoever is lighter replaces it


def answers(snapshot, now=200.0, chosen=AS_PRINTED):
    found = deadline.schedule_overdue(snapshot, now, chosen)
    check(snapshot, found)
    assert found == deadline.schedule_overdue(replace(snapshot, jobs=snapshot.jobs[::-1]), now, chosen), (
        "whatever the order of the jobs"
    )
    assert not found or not deadline.schedule_overdue(after(snapshot, *found), now, chosen), "one pass (D7)"
    return found


def test_an_overdue_job_gives_its_place_to_a_lighter_one_that_does_not_fit_otherwise():
    (answer,) = answers(world(overdue(), light()))
    assert isinstance(answer, Requeue) and (answer.job, answer.yields_to) == ("h", ("l",))
    assert "h is 20.0 s over the 100.0 s expected of it" in answer.explanation.sentence
    (candidate,) = answer.explanation.candidates
    assert (candidate.job, candidate.victim, candidate.makespan_s) == ("l", "h", 50.0), "20 s, then h's 30 s"


def test_nobody_is_stopped_within_the_tolerance_or_while_something_is_done_to_it():
    for job in (
        overdue(task_s=105.0),
        overdue(expected_s=None),
        overdue(busy=True),
        replace(overdue(), state="adjusting"),
        overdue(cooling_until=201.0),
        overdue(wanted=0),
    ):
        assert answers(world(job, light())) == ()


def test_d7_nobody_is_stopped_if_nothing_replaces_it():
    assert answers(world(overdue())) == ()
    assert answers(world(overdue(), light(cores=7))) == (), "heavier than it"
    assert answers(world(overdue(), light(cores=4))) == (), "starts anyway"
    assert answers(world(overdue(), on_cpu("l", cores=5))) == (), "its length is not known"


def test_d7_nobody_is_stopped_on_a_node_that_is_not_heard_of_where_nobody_could_start():
    assert answers(world(overdue(), light(), nodes=[cpu_node(heard=False)])) == ()


def test_room_on_a_node_that_is_not_heard_of_does_not_keep_anybody_in_the_place_of_another():
    (answer,) = answers(world(overdue(), light(), nodes=[cpu_node(), cpu_node("silent", heard=False)]))
    assert answer.yields_to == ("l",)


def test_d7_nobody_gives_way_to_a_job_that_can_start_on_idle_gpus_of_several_nodes():
    nodes = [node("a", used=8), node("b", idle=2), node("c", idle=2)]
    newcomer = waiting("l", left=100, optional=(4,), sla_s=700)
    assert answers(world(heavy_gpu(optional=(8,), num_gpus=8), newcomer, nodes=nodes), chosen=ELASTIC)
    both = world(heavy_gpu(optional=(8,), num_gpus=8), replace(newcomer, max_workers=2), nodes=nodes)
    assert answers(both, chosen=ELASTIC) == ()
    assert answers(both), "without SideCar scheduling no job is spread"


def test_d7_a_job_is_stopped_twice_at_most():
    assert answers(world(overdue(preempts=1), light()))
    assert answers(world(overdue(preempts=2), light())) == ()


def test_d5_it_is_displaced_only_for_as_long_as_it_can_wait():
    heavy = overdue(submit_s=0, sla_s=300)  # 315 with the tolerance; at 200 it needs 30 more: 85 left
    (answer,) = answers(world(heavy, light("a", 2, 60, sla_s=900), light("b", 3, 30, sla_s=901), overdue("o", 3)))
    assert answer.yields_to == ("a",)
    assert next(c for c in answer.explanation.candidates if c.job == "b").rejected == "h can wait only 25.0 s more"


@pytest.mark.parametrize("sla_s", [200, None])
def test_d5_without_a_deadline_to_hold_it_gives_way_to_what_is_shorter_than_what_it_has_left(sla_s):
    heavy = overdue(submit_s=0, sla_s=sla_s)  # 30 s are left of it
    snapshot = world(heavy, light("long", 4.5, 31), light("short", 4.5, 29), nodes=[cpu_node(cores=6)])
    assert answers(snapshot)[0].yields_to == ("short",)


def test_d5_as_printed_a_job_without_a_deadline_gives_way_for_however_long():
    snapshot = world(overdue(), light("long", 5, 100, sla_s=1e5))
    assert answers(snapshot) == ()
    assert answers(snapshot, chosen=settings(literal_budget=True, yield_by="stop"))[0].yields_to == ("long",)


def test_d5_as_printed_the_waits_of_the_others_are_counted():
    heavy = overdue(submit_s=0, sla_s=300)  # started at 80 with 100 expected: 135 of waiting left then
    others = [light("tight", 5, 60, sla_s=100), light("easy", 5, 1, sla_s=1000, submit_s=-10)]
    (answer,) = answers(world(heavy, *others), chosen=settings(literal_budget=True, order_by="paper", yield_by="stop"))
    assert answer.yields_to == ("tight",), "a wait of 45 s; easy's 1049 s are more than 135"
    (answer,) = answers(world(heavy, *others))
    assert "easy" in answer.yields_to, "resolved: its one second of work counts"


def test_d6_the_heaviest_overdue_job_is_stopped_and_of_equals_the_one_longest_over():
    nodes = [cpu_node(cores=12)]
    pair = [overdue("h1", 6, task_s=120), overdue("h2", 5.5, task_s=900)]
    assert answers(world(*pair, light(cores=2), nodes=nodes))[0].job == "h1"
    equals = [overdue("h1", 5, task_s=120), overdue("h2", 5, task_s=121)]
    assert answers(world(*equals, light(cores=3), nodes=nodes))[0].job == "h2"


def test_if_the_heaviest_helps_nobody_the_next_one_is_asked():
    jobs = [overdue("h1", 6, preempts=2), overdue("h2", 4), light(cores=3)]
    assert answers(world(*jobs))[0].job == "h2"


def test_d8_the_most_urgent_replace_it_first_and_together_they_fit():
    queue = [light("c", 3, 10, sla_s=500), light("a", 3, 10, sla_s=300), light("b", 5, 10, sla_s=400)]
    (answer,) = answers(world(overdue(), overdue("o", 4), *queue))
    assert answer.yields_to == ("a", "c"), "b does not fit beside a"
    assert "does not fit" in next(c for c in answer.explanation.candidates if c.job == "b").rejected


def test_the_memory_of_its_node_counts_too_where_it_is_known():
    tasks = (Task("t", cores=5, memory=80),)
    assert answers(world(overdue(), light(tasks=tasks), nodes=[cpu_node(memory=50)])) == ()
    assert answers(world(overdue(), light(tasks=tasks), nodes=[cpu_node()]))


def test_a_job_pinned_elsewhere_replaces_nobody():
    nodes = [cpu_node(), cpu_node("other", cores=1)]
    assert answers(world(overdue(), light(pinned="other"), nodes=nodes)) == ()


@pytest.mark.parametrize(
    ("sla_s", "stopped"),
    [(220, True), (239, False), (200, False), (None, False)],
    ids=["hangs", "can wait", "lost", "-"],
)
def test_x9_it_is_stopped_only_where_that_saves_a_deadline(sla_s, stopped):
    """At 200 the other needs 20 s and would have to wait for 30: until 231, 250.95, 210 with the tolerance."""
    assert bool(answers(world(overdue(), light(sla_s=sla_s)), chosen=ALONE)) is stopped


def test_the_job_that_gave_way_stays_out_until_the_other_has_started():
    snapshot = world(overdue(), light(sla_s=220))
    decisions = decide(snapshot, 200.0, ALONE)
    assert [type(d) for d in decisions[:1]] == [Requeue]
    back = world(replace(overdue(preempts=1, yields_to=("l",)), state="submitted", node=None), light())
    started = [d.job for d in decide(back, 210.0, ALONE) if isinstance(d, Start)]
    assert started == ["l"]


# X9: an overdue GPU job shrinks first


def heavy_gpu(**more):
    return running("h", 4, **({"left": 1000, "expected_s": 100.0, "task_s": 200.0} | more))


def test_x9_an_overdue_gpu_job_gives_gpus_instead_of_being_stopped():
    (answer,) = answers(cluster(heavy_gpu(), waiting("l", optional=(1, 2), sla_s=900), used=4), chosen=ELASTIC)
    assert isinstance(answer, Start)
    assert (answer.job, answer.victim, answer.num_gpus + answer.victim_num_gpus) == ("l", "h", 4)
    assert "goes from 4 to 2" in answer.explanation.sentence
    assert {c.num_gpus for c in answer.explanation.candidates} == {1, 2}
    assert all(c.makespan_s > 0 for c in answer.explanation.candidates)


def test_x9_the_count_that_holds_the_deadline_of_the_newcomer_is_preferred():
    long = waiting("l", left=850, optional=(1, 2), sla_s=700)  # 1024 s on one GPU, 674 s on two
    (answer,) = answers(cluster(heavy_gpu(left=1), long, used=4), now=0.0, chosen=ELASTIC)
    assert answer.num_gpus == 2


def test_x9_a_job_that_would_lose_its_own_deadline_does_not_shrink():
    heavy = heavy_gpu(left=100, sla_s=310.0)  # at 200 108 s more, in time; 162 s on two GPUs
    assert answers(cluster(heavy, waiting("l", optional=(1, 2), sla_s=900), used=4), chosen=ELASTIC) == ()
    assert answers(cluster(replace(heavy, sla_s=100.0), waiting("l", optional=(1, 2)), used=4), chosen=ELASTIC), (
        "lost anyway"
    )


def test_x9_as_in_the_paper_it_is_always_stopped():
    snapshot = cluster(heavy_gpu(), waiting("l", left=100, optional=(1, 2), sla_s=900), used=4)
    (answer,) = answers(snapshot, chosen=AS_PRINTED)
    assert isinstance(answer, Requeue) and answer.yields_to == ("l",)


def test_x9_a_job_that_cannot_shrink_is_stopped():
    (answer,) = answers(
        cluster(heavy_gpu(optional=(4,)), waiting("l", left=100, optional=(2,), sla_s=800), used=4),
        chosen=ELASTIC,
    )
    assert isinstance(answer, Requeue) and answer.yields_to == ("l",)


@pytest.mark.parametrize("freezes", [True, False])
def test_x9_one_that_never_saves_gives_its_place_where_it_can_be_frozen(freezes):
    heavy = overdue(rigid=True, freezes=freezes, unsaved_s=1e6)
    found = answers(world(heavy, light()))
    assert [(type(d), d.job) for d in found] == ([(Requeue, "h")] if freezes else [])
    said = "; it is frozen in memory and goes back to the queue until l has started"
    assert all(said in d.explanation.sentence for d in found)
    assert all(candidate.makespan_s == 50.0 for d in found for candidate in d.explanation.candidates), "nothing is lost"


def test_x9_the_most_urgent_lighter_job_is_the_one_that_starts():
    jobs = [waiting("late", optional=(1,), sla_s=9000), waiting("soon", optional=(1,), sla_s=1500)]
    assert answers(cluster(heavy_gpu(), *jobs, used=4), chosen=ELASTIC)[0].job == "soon"


def test_stopping_a_job_on_gpus_helps_nobody_who_trains_on_cpu():
    nodes = [node(used=4), cpu_node(cores=1)]
    heavy = heavy_gpu(optional=(4,))
    assert answers(world(heavy, light(cores=2), nodes=nodes)) == ()
