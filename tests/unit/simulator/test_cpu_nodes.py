"""Promise: jobs trained on CPU share the cores of their node at every moment, and every change takes its time."""

from __future__ import annotations

import math

import pytest

from adaptive_scheduler.decision import Explanation, Limit, Move, Requeue, Start, Stay
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Deadlines, FlowCon, Settings, SpeCon
from adaptive_scheduler.snapshot import Node, Task
from simulator.cluster import SimulatedCluster
from simulator.scenario import Costs, CpuWork, PolicySetup, Submission, Workload

WHY = Explanation("test", "because")
NOBODY = Settings(systems=())


def job(job_id, core_s, arrival=0.0, demand=1.0, curve=None, iterations=1000.0, **more):
    return Submission(job_id, "t", arrival, (0,), iterations, 0, cpu=CpuWork(core_s, demand, curve), **more)


def run(*jobs, plan=None, nodes=1, cores=1.0, contention=0.0, settings=NOBODY, expected=None, **costs):
    policy_setup = PolicySetup(
        "test", plan or at_once, Costs(**(ZERO | costs)), Profiles(), settings, expected=expected
    )
    hosts = tuple(Node(f"w{i}", "", cores=cores) for i in range(1, nodes + 1))
    return SimulatedCluster(
        Workload("test", 0, jobs, hosts, (policy_setup,), contention=contention), policy_setup
    ).run()


ZERO = {"launch": 0.0, "begin": 0.0, "stop": 0.0, "shrunk": 0.0, "grown": 0.0, "end": 0.0}


def at_once(snapshot, now):
    """Everybody starts where it is pinned, else on w1."""
    return tuple(Start(j.id, j.pinned or "w1", 0, WHY) for j in snapshot.queue)


def then(*steps):
    """At once, and each of these once, from its time on."""
    left = list(steps)

    def plan(snapshot, now):
        answers = list(at_once(snapshot, now))
        while left and now >= left[0][0]:
            answers.append(left.pop(0)[1])
        return tuple(answers)

    return plan


def ends(outcome):
    return {j.given.id: pytest.approx(j.finished_s) for j in outcome.jobs}


# ---- sharing


def test_equal_sharing_ends_flowcons_fixed_run_without_limits_where_the_paper_says():
    outcome = run(job("vae", 259.6), job("mnist-p", 106.1, 40.0), job("mnist-t", 28.2, 80.0))
    assert ends(outcome) == {"vae": 393.9, "mnist-p": 280.4, "mnist-t": 164.6}


def test_a_job_that_cannot_use_its_share_leaves_it_to_the_others():
    outcome = run(job("small", 19.0, demand=0.19), job("big", 81.0))
    assert ends(outcome) == {"small": 100.0, "big": 100.0}


def test_contention_takes_the_same_share_of_everybodys_speed_for_each_further_job():
    outcome = run(job("a", 50.0), job("b", 50.0), contention=0.1)
    assert ends(outcome) == {"a": pytest.approx(100 / 0.9), "b": pytest.approx(100 / 0.9)}


def test_what_the_cores_of_a_node_did_is_never_more_than_it_has():
    outcome = run(job("a", 30.0, demand=1.5), job("b", 40.0, 5.0), job("c", 10.0, 7.0, demand=0.3), cores=2.0)
    assert all(load.cores <= 2.0 + 1e-9 for load in outcome.loads)
    assert sum(j.used for j in outcome.jobs) == pytest.approx(80.0)
    assert outcome.loads[-1].jobs == 0


def test_a_newcomer_is_launched_before_it_uses_any_core():
    outcome = run(job("a", 10.0), job("b", 10.0), cpu_launch=4.0, nodes=1)
    assert ends(outcome) == {"a": 24.0, "b": 24.0}


# ---- what is done to a job


def test_a_move_stops_the_job_for_saving_and_restoring_and_it_goes_on_with_what_it_had_done():
    plan = then((10.0, Move("a", "w2", 0, WHY)))
    outcome = run(job("a", 100.0), job("b", 100.0), job("tick", 1e-6, 10.0, node="w2"), plan=plan, nodes=2)
    a = outcome.jobs[0]
    # 5 core-seconds are done, 95 are left after 5 s.
    assert a.finished_s == pytest.approx(10 + 5 + 95)
    assert ends(outcome)["b"] == 10 + 95
    assert (a.migrated_s, a.rebalanced, outcome.moves, a.stopped_s) == (10.0, False, 1, 5.0)


def test_a_rebalancing_move_spends_only_that_one():
    plan = then((10.0, Move("a", "w2", 0, WHY, rebalance=True)))
    outcome = run(job("a", 100.0), job("tick", 1e-6, 10.0, node="w2"), plan=plan, nodes=2)
    assert (outcome.jobs[0].migrated_s, outcome.jobs[0].rebalanced) == (None, True)


def test_a_job_that_stays_is_marked_as_the_decision_says():
    plan = then((10.0, Stay("a", 10.0, False, WHY)), (20.0, Stay("b", 20.0, True, WHY)))
    ticks = [job(f"tick{t}", 1e-6, t, node="w2") for t in (10.0, 20.0)]
    a, b, *_ = run(job("a", 100.0), job("b", 100.0), *ticks, plan=plan, nodes=2).jobs
    assert [(j.migrated_s, j.move_refused_s) for j in (a, b)] == [(None, 10.0), (20.0, 20.0)]


def test_a_limit_holds_at_once_and_the_others_get_the_rest():
    outcome = run(job("a", 50.0), job("b", 75.0), plan=_limit_later(0.25, 1000.0))
    assert ends(outcome) == {"b": 100.0, "a": 200.0}
    assert outcome.limits == 1


def _limit_later(cores, lasts_s):
    """As soon as a and b train."""
    done = []

    def plan(snapshot, now):
        answers = list(at_once(snapshot, now))
        if not done and all(name in snapshot.job and snapshot.job[name].state == "running" for name in "ab"):
            done.append(now)
            answers.append(Limit("a", "w1", cores, lasts_s, WHY))
        return tuple(answers)

    return plan


def test_a_limit_that_is_not_renewed_lifts_itself():
    seen = {}

    def plan(snapshot, now):
        seen[now] = snapshot.job["a"].cpu_limit if "a" in snapshot.job else None
        return limited(snapshot, now)

    limited = _limit_later(0.25, 20.0)
    outcome = run(job("a", 50.0), job("b", 75.0), plan=plan)
    # 20 s at a quarter and three quarters, then halves: a needs 45 more, b 60.
    assert ends(outcome) == {"a": pytest.approx(110.0), "b": pytest.approx(125.0)}
    assert seen[20.0] is None


def test_a_requeued_job_saves_waits_and_goes_on_from_its_checkpoint():
    def plan(snapshot, now):
        if now == 10.0 and snapshot.job["a"].preempts == 0:
            return (Requeue("a", WHY, ("b",)), *(Start("b", "w1", 0, WHY) for j in snapshot.queue if j.id == "b"))
        ready = [j for j in snapshot.queue if not set(j.yields_to) & snapshot.job.keys()]
        return tuple(Start(j.id, "w1", 0, WHY) for j in ready)

    outcome = run(job("a", 50.0), job("b", 20.0, 10.0), plan=plan)
    a, b = outcome.jobs
    assert b.finished_s == pytest.approx(30.0)
    assert a.finished_s == pytest.approx(30 + 3 + 40)
    assert (a.preempts, outcome.requeues, a.stopped_s) == (1, 1, 2.0)


# ---- tasks and deadlines

TASKS = (Task("prepare", cores=0.5), Task("train", cores=1.0, replicas=2))


def test_tasks_run_one_after_another_each_with_the_cores_it_asks_for_and_queue_again():
    outcome = run(job("a", 30.0, tasks=TASKS, task_iterations=(100.0, 900.0)), cores=4.0)
    assert [type(d) for _, d in outcome.decisions] == [Start, Start]
    assert ends(outcome)["a"] == 3 / 0.5 + 27 / 2
    assert [(h.begin_s, h.end_s) for h in outcome.on_cpu] == [(0.0, 6.0), (6.0, pytest.approx(19.5))]


def test_the_scheduler_is_asked_at_the_first_tick_after_a_task_has_become_overdue():
    seen = []

    def plan(snapshot, now):
        seen.append((now, snapshot.job["a"].task_s if "a" in snapshot.job else None))
        return at_once(snapshot, now)

    settings = Settings(systems=("deadline",), deadlines=Deadlines(tick_s=5.0, beta=0.05))
    run(job("a", 100.0), plan=plan, settings=settings, expected=lambda snapshot, j: 20.0)
    assert [at for at, _ in seen] == [0.0, 0.0, 25.0, 100.0]
    assert seen[2] == (25.0, 25.0)


def test_a_requeued_task_counts_the_time_it_has_run_before():
    seen = []

    def plan(snapshot, now):
        if "a" in snapshot.job:
            seen.append((now, snapshot.job["a"].task_s))
        if now == 10.0 and snapshot.job["a"].preempts == 0:
            return (Requeue("a", WHY),)
        return at_once(snapshot, now)

    run(job("a", 50.0), job("tick", 1e-6, 10.0, node="w2"), plan=plan, nodes=2)
    # Ten seconds trained and two to save; the rest of the wait does not count.
    assert seen[-1] == (pytest.approx(15.0), pytest.approx(12.0))


# ---- failures


def test_a_crash_costs_what_was_done_since_the_last_checkpoint_and_happens_once():
    outcome = run(job("a", 1000.0, fails_at=(0.7,)))
    (a,) = outcome.jobs
    # At 700 s; the checkpoint is of 600 s; 3 s to start again from it.
    assert a.finished_s == pytest.approx(700 + 3 + 400)
    assert (a.crashes, a.lost_s) == (1, pytest.approx(100.0))


# ---- monitors


def falling(share):
    return math.exp(-5 * share)


def test_growth_is_read_at_every_interval_and_the_use_of_each_node_is_known():
    seen = {}

    def plan(snapshot, now):
        seen[now] = snapshot
        return at_once(snapshot, now)

    settings = Settings(systems=("specon",), specon=SpeCon(interval_s=30.0))
    jobs = [job("a", 100.0, curve=falling), job("b", 30.0, demand=0.3, node="w2", curve=falling)]
    run(*jobs, plan=plan, settings=settings, nodes=2)
    assert {30.0, 60.0, 90.0} <= set(seen)
    last = seen[60.0].job["a"].growth.last
    assert (last.at_s, last.evaluations, last.value) == (60.0, 600, pytest.approx(falling(0.6)))
    assert [n.cpu_use for n in seen[60.0].nodes] == [pytest.approx(1.0), pytest.approx(0.3)]
    assert max(seen) == pytest.approx(100.0)


def test_efficiency_is_measured_when_the_pool_changes_and_at_the_interval_after_that():
    seen = {}

    def plan(snapshot, now):
        if "a" in snapshot.job:
            seen[now] = snapshot.job["a"].efficiency
        return at_once(snapshot, now)

    settings = Settings(systems=("flowcon",), flowcon=FlowCon(interval_s=20.0))
    run(job("a", 100.0, curve=falling), job("b", 30.0, 50.0, curve=falling), plan=plan, settings=settings)
    assert [at for at in seen if at <= 70.0] == [0.0, 20.0, 40.0, 50.0, 70.0]
    at_70 = seen[70.0].last
    # 50 s alone and 20 s with b: ten core-seconds in the last twenty seconds.
    assert (at_70.iterations, at_70.usage["cpu"]) == (pytest.approx(600.0), pytest.approx(0.5))


def test_without_the_systems_nothing_is_measured_and_nobody_is_asked_for_it():
    asked = []

    def plan(snapshot, now):
        asked.append(now)
        return at_once(snapshot, now)

    (a,) = run(job("a", 100.0, curve=falling), plan=plan).jobs
    assert asked == [0.0, 0.0, 100.0]
    assert (a.growth.last, a.efficiency.last) == (None, None)
