"""Promise: when a node fails every process on it is gone, and who ran there goes on elsewhere from its checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler.decision import Explanation, Move, Requeue, Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import Worker
from reshape_papers import comparison_policies, sidecar_baselines
from reshape_papers.failures import DrawnFailures, RandomOutages
from reshape_papers.run import compare
from reshape_papers.workloads import build
from simulator.cluster import SimulatedCluster
from simulator.scenario import Costs, CpuWork, NoWorkload, Outage, PolicySetup, Submission, Workload
from tests.unit.adaptive_scheduler.worlds import PROFILES, cpu_node, node, speed_rows

ROOT = Path(__file__).parents[3]
IN_PLACE, RELAUNCHED = Costs.in_place(DEFAULT_OVERHEADS), Costs.relaunched(DEFAULT_OVERHEADS)
WHY = Explanation("test", "because")
TWO_TYPES = Profiles.from_rows([*speed_rows(), *speed_rows(gpu_type="P100", speed_up={1: 0.5, 2: 0.8, 4: 1.1})])


def job(job_id, arrival=0.0, iterations=1000.0, optional=(1, 2, 4), fixed=1, **more):
    return Submission(job_id, "t", arrival, optional, iterations, fixed, **more)


def cpu_job(job_id, core_s, arrival=0.0, **more):
    return Submission(job_id, "t", arrival, (0,), 1000.0, 0, cpu=CpuWork(core_s), **more)


def run(*jobs, plan, nodes, outages, costs=IN_PLACE, settings=None, profiles=PROFILES):
    policy_setup = PolicySetup("test", plan, costs, profiles, settings or Settings(cooldown_factor=0.0))
    return SimulatedCluster(
        Workload("test", 0, jobs, tuple(nodes), (policy_setup,), outages=tuple(outages)), policy_setup
    ).run()


def on(job_id, *places):
    """A planner that starts this job on the next of these places whenever it waits: node and count."""
    left = list(places)

    def plan(snapshot, now):
        if left and any(j.id == job_id for j in snapshot.queue):
            return (Start(job_id, *left.pop(0), WHY),)
        return ()

    return plan


def together(*plans):
    return lambda snapshot, now: tuple(d for plan in plans for d in plan(snapshot, now))


def held(outcome, gpu):
    return [(h.job, h.begin_s, h.end_s) for h in outcome.held if h.gpu == gpu]


NODES = (node("a", idle=2), node("b", idle=4))


# ---- jobs on GPUs


def test_a_job_whose_node_fails_starts_elsewhere_from_its_last_checkpoint():
    outcome = run(
        job("j", iterations=1700.0), plan=on("j", ("a", 2), ("b", 4)), nodes=NODES, outages=[Outage("a", 808.0, 2000.0)]
    )
    (j,) = outcome.jobs
    # It trained from 108 s to 808 s at 1.7 a second; what it did by 708 s is saved.
    assert j.finished_s == pytest.approx(808 + 108 + (1700 - 600 * 1.7) / 2.4)
    assert (j.outages, j.lost_s, j.crashes, outcome.requeues) == (1, pytest.approx(100.0), 0, 0)
    assert held(outcome, "a0") == [("j", 83.0, 808.0)]


def test_a_job_that_is_still_launching_when_its_node_fails_is_launched_again():
    outcome = run(job("j"), plan=on("j", ("a", 2), ("b", 2)), nodes=NODES, outages=[Outage("a", 50.0, 90.0)])
    (j,) = outcome.jobs
    assert j.finished_s == pytest.approx(50 + 108 + 1000 / 1.7)
    assert (j.outages, j.lost_s) == (1, 0.0)
    assert held(outcome, "a0") == []


def test_a_node_that_is_down_has_no_gpu_to_give_and_has_them_again_when_it_is_back():
    seen = {}

    def plan(snapshot, now):
        seen[now] = snapshot.node["a"]
        return start(snapshot, now) if snapshot.node["a"].idle >= 2 else ()

    start = on("j", ("a", 2), ("a", 2))
    outcome = run(job("j"), plan=plan, nodes=NODES[:1], outages=[Outage("a", 200.0, 500.0)])
    down, back = seen[200.0], seen[500.0]
    assert (down.idle, down.healthy, down.schedulable, down.heard) == (0, 0, False, False)
    assert (back.idle, back.healthy, back.schedulable, back.heard) == (2, 2, True, True)
    assert outcome.jobs[0].finished_s == pytest.approx(500 + 108 + 1000 / 1.7)


def test_a_node_that_fails_again_while_it_is_down_is_back_after_the_later_time():
    outages = [Outage("a", 200.0, 500.0), Outage("a", 300.0, 400.0), Outage("a", 450.0, 900.0)]
    seen = {}

    def plan(snapshot, now):
        seen[now] = snapshot.node["a"].heard
        return ()

    jobs = [job("j")]
    with pytest.raises(Exception, match="job j can never start"):
        run(*jobs, plan=plan, nodes=NODES, outages=outages)
    assert seen == {0.0: True, 200.0: False, 300.0: False, 450.0: False, 900.0: True}


def test_a_spread_job_lets_go_of_its_gpus_on_every_node_when_one_fails():
    start = Start("j", "a", 4, WHY, workers=(Worker("a", 2), Worker("b", 2)))
    again = on("j", ("b", 4))

    def plan(snapshot, now):
        return (start,) if now == 0 else again(snapshot, now)

    outcome = run(job("j", max_workers=2), plan=plan, nodes=NODES, outages=[Outage("a", 300.0, 9e9)])
    assert held(outcome, "b0")[0] == ("j", 83.0, 300.0)
    assert outcome.jobs[0].finished_s == pytest.approx(300 + 108 + 1000 / 2.4)


def test_a_job_that_moves_is_lost_with_the_node_that_it_comes_from_but_not_once_it_has_left():
    def outcome(at_s):
        move = iter([Move("j", "b", 2, WHY)])
        starts = on("j", ("a", 2), ("b", 4))
        ticks = on("tick", ("c", 1))

        def plan(snapshot, now):
            return (*starts(snapshot, now), *ticks(snapshot, now), *(move if now == 208 else ()))

        jobs = [job("j"), job("tick", 208.0, 1.0)]
        nodes = [*NODES, node("c", idle=1)]
        return run(*jobs, plan=plan, nodes=nodes, outages=[Outage("a", at_s, 9e9)])

    saving, gone = outcome(215.0).jobs[0], outcome(280.0).jobs[0]
    # 5 s and 7 s to save and end: at 215 s nothing is saved yet.
    assert (saving.outages, saving.lost_s) == (1, pytest.approx(100.0))
    assert saving.finished_s == pytest.approx(215 + 108 + 1000 / 2.4)
    assert (gone.outages, gone.lost_s) == (0, 0.0)
    assert gone.finished_s == pytest.approx(208 + 12 + 54 + 83 + 25 + (1000 - 170) / 1.7)


def test_a_newcomer_and_its_victim_are_both_lost_with_their_node_and_owe_each_other_nothing():
    take = iter([Start("b", "b", 2, WHY, victim="v", victim_num_gpus=2)])
    starts = together(on("v", ("b", 4), ("a", 2)), on("b"))

    def plan(snapshot, now):
        return (*starts(snapshot, now), *(take if now == 200 else ()), *(again(snapshot, now) if now >= 1000 else ()))

    again = on("b", ("b", 4))
    jobs = [job("v", iterations=2400.0), job("b", 200.0, 170.0)]
    outcome = run(*jobs, plan=plan, nodes=NODES, outages=[Outage("b", 250.0, 1000.0)])
    v, b = outcome.jobs
    assert v.finished_s == pytest.approx(250 + 108 + 2400 / 1.7)
    assert b.finished_s == pytest.approx(1000 + 108 + 170 / 2.4)
    assert (outcome.removes, v.busy, v.gives_to, b.victims) == (0, False, None, [])


def test_a_job_whose_process_is_still_ending_when_its_node_fails_has_ended_all_the_same():
    slow = Costs(launch=0.0, begin=0.0, stop=1.0, shrunk=1.0, grown=1.0, end=50.0)
    outcome = run(
        job("j", iterations=170.0), plan=on("j", ("a", 2)), nodes=NODES, costs=slow, outages=[Outage("a", 110.0, 120.0)]
    )
    (j,) = outcome.jobs
    assert (j.finished_s, j.outages) == (pytest.approx(100.0), 0)
    assert held(outcome, "a0") == [("j", 0.0, 110.0)]


def test_what_a_job_saved_before_it_went_back_to_the_queue_outlives_its_node():
    leave = iter([Requeue("j", WHY)])
    starts = on("j", ("a", 2))
    later = on("j", ("b", 4))
    ticks = on("tick", ("c", 1))

    def plan(snapshot, now):
        first = starts(snapshot, now)
        return (
            *first,
            *ticks(snapshot, now),
            *(leave if now == 208 else ()),
            *(later(snapshot, now) if now >= 300 else ()),
        )

    jobs = [job("j"), job("tick", 208.0, 1.0)]
    outcome = run(*jobs, plan=plan, nodes=[*NODES, node("c", idle=1)], outages=[Outage("a", 300.0, 400.0)])
    j = outcome.jobs[0]
    assert (j.outages, j.lost_s) == (0, 0.0)
    assert j.finished_s == pytest.approx(300 + 108 + (1000 - 170) / 2.4)


# ---- jobs on CPU


def test_jobs_on_cpu_go_back_to_the_queue_when_their_node_fails_and_leave_its_cores():
    free = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, cpu_save=0.0, cpu_restore=3.0)
    plan = together(on("a", ("x", 0), ("y", 0)), on("b", ("x", 0), ("y", 0)), on("c", ("y", 0)))
    jobs = [cpu_job("a", 1000.0), cpu_job("b", 50.0), cpu_job("c", 500.0)]
    nodes = [cpu_node("x", 2.0), cpu_node("y", 3.0)]
    outcome = run(
        *jobs, plan=plan, nodes=nodes, costs=free, settings=Settings(systems=()), outages=[Outage("x", 700.0, 9e9)]
    )
    a, b, c = outcome.jobs
    # b is done by then; a has a checkpoint of 600 s.
    assert (b.finished_s, c.finished_s) == (pytest.approx(50.0), pytest.approx(500.0))
    assert a.finished_s == pytest.approx(700 + 3 + 400)
    assert (a.outages, a.lost_s) == (1, pytest.approx(100.0))
    assert [(h.gpu, h.begin_s, h.end_s) for h in outcome.on_cpu if h.job == "a"] == [
        ("x", 0.0, 700.0),
        ("y", 703.0, a.finished_s),
    ]


def test_a_cpu_job_on_its_way_to_a_node_that_fails_is_queued_again():
    slow = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, cpu_launch=10.0)
    nodes = [cpu_node("x"), cpu_node("y")]
    outcome = run(
        cpu_job("a", 100.0), plan=on("a", ("x", 0), ("y", 0)), nodes=nodes, costs=slow,
        settings=Settings(systems=()), outages=[Outage("x", 5.0, 9e9)],
    )  # fmt: skip
    assert outcome.jobs[0].finished_s == pytest.approx(5 + 10 + 100)
    assert {h.gpu for h in outcome.on_cpu} == {"y"}


# ---- drawn


def test_drawn_outages_come_by_time_never_two_of_a_node_at_once_and_the_same_each_time():
    drawn = RandomOutages(("a", "b", "c"), 1000.0, 300.0, 50_000.0, seed=4)
    outages = list(drawn)
    assert outages == list(drawn)
    assert [o.at_s for o in outages] == sorted(o.at_s for o in outages)
    for name in drawn.nodes:
        of_node = [o for o in outages if o.node == name]
        assert all(o.back_s == o.at_s + 300 for o in of_node)
        assert all(one.back_s <= other.at_s for one, other in pairwise(of_node))
        assert of_node[-1].at_s <= 50_000
    # 50,000 s of cycles of 1,300 s each, on three nodes: 115 in the mean, with a spread of about 8.
    assert 85 < len(outages) < 145


def test_another_seed_or_another_name_draws_other_outages():
    def first(name, seed):
        return next(iter(RandomOutages((name,), 1000.0, 300.0, 1e9, seed)))

    assert len({first("a", 1).at_s, first("a", 2).at_s, first("b", 1).at_s}) == 3


def test_crashes_hit_about_the_share_of_the_jobs_that_was_said():
    jobs = build("workload-s", 0).jobs
    workload = DrawnFailures(job_crashes=0.3).drawn(build("workload-s", 0), 7)
    hit = [j for j in workload.jobs if j.fails_at]
    assert 4 <= len(hit) <= 20
    assert all(0 <= j.fails_at[0] <= 1 for j in hit)
    assert [j.id for j in workload.jobs] == [j.id for j in jobs]
    assert "30%" in workload.invented[-1]
    assert all(j.fails_at for j in DrawnFailures(job_crashes=1.0).drawn(workload, 7).jobs)


def test_failures_are_reported_only_where_there_were_to_be_any():
    calm = build("case-study", 0)
    rows = [r.row for r in compare(DrawnFailures(node_mtbf_s=400.0, node_repair_s=60.0).drawn(calm, 1), ("sidecar",))]
    assert rows[0]["crashes"] > 0
    assert rows[0]["seed"] == 1
    assert rows[0]["makespan_s"] > next(compare(calm, ("sidecar",))).row["makespan_s"]
    assert not {"crashes", "lost_work_s"} & set(next(compare(calm, ("sidecar",))).row)


def test_the_exact_search_which_plans_all_starts_ahead_refuses_nodes_that_fail():
    workload = DrawnFailures(node_mtbf_s=400.0, node_repair_s=60.0).drawn(build("case-study", 0), 1)
    with pytest.raises(NoWorkload, match="fail"):
        comparison_policies.policy_setup("exact", workload)


def test_the_same_seed_fails_alike_whatever_the_hash_seed():
    code = (
        "from reshape_papers.workloads import build\n"
        "from reshape_papers.failures import DrawnFailures\n"
        "from simulator.cluster import SimulatedCluster\n"
        "w = DrawnFailures(5000.0, 300.0, 0.2).drawn(build('workload-s', 3), 3)\n"
        "for c in w.policy_setups:\n"
        "    o = SimulatedCluster(w, c).run()\n"
        "    print(c.name, [(j.finished_s, j.lost_s) for j in o.jobs], [repr(d) for d in o.decisions])\n"
    )
    outputs = set()
    for seed in ("0", "4711"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


# ---- always

PLANS = {
    "sidecar": (decide, IN_PLACE),
    "surplus": (partial(decide, settings=Settings(over_release="always")), IN_PLACE),
    "spread": (partial(decide, settings=Settings(placement="count_only")), IN_PLACE),
    "relaunch": (decide, RELAUNCHED),
    "slow end": (decide, Costs(launch=3.0, begin=2.0, stop=4.0, shrunk=1.0, grown=2.0, end=90.0)),
    "free": (decide, Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    "termination": (sidecar_baselines.termination, RELAUNCHED),
    "default": (None, RELAUNCHED),
} | {name: (name, IN_PLACE) for name in sorted(comparison_policies.PLANNERS) if name != "exact"}
submissions = st.lists(
    st.tuples(
        st.floats(0, 2000), st.floats(1, 3000), st.sampled_from([(1,), (2,), (1, 2, 4), (1, 2), (4,), (0,)]),
        st.booleans(), st.integers(1, 2),
    ),
    min_size=1,
    max_size=7,
)  # fmt: skip
breakdowns = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.one_of(st.floats(0, 4000), st.integers(0, 40).map(lambda n: n * 100.0)),
        st.floats(1, 1500),
    ),
    max_size=8,
)


@given(submissions, st.sampled_from(sorted(PLANS)), breakdowns)
def test_every_job_ends_no_gpu_has_two_and_nobody_is_on_a_node_that_is_down(drawn, name, broken):
    on_cpu = name in {"sidecar", "surplus", "relaunch", "slow end", "free"}
    jobs = [
        Submission(
            f"j{i}", "t", at, optional, iterations, optional[0], max_workers=workers,
            fails_at=(0.3, 0.8) if crashes else (),
            cpu=CpuWork(iterations, 1.5) if optional == (0,) else None,
        )
        for i, (at, iterations, optional, crashes, workers) in enumerate(sorted(drawn))
        if on_cpu or optional != (0,)
    ]  # fmt: skip
    if not jobs:
        return
    outages = tuple(Outage(n, at, at + s) for n, at, s in sorted(broken, key=lambda o: o[1]))
    plan, costs = PLANS[name]
    nodes = (node("a", idle=4), node("b", idle=4, gpu_type="P100"), cpu_node("c", 2.0), cpu_node("d", 1.0))
    settings_ = Settings(cooldown_factor=0.0, placement="count_only" if name == "spread" else "host")
    policy_setup = PolicySetup(name, plan or sidecar_baselines.default(jobs), costs, TWO_TYPES, settings_)
    workload = Workload("test", 0, tuple(jobs), nodes, (policy_setup,), outages=outages)
    if isinstance(plan, str):
        policy_setup = comparison_policies.policy_setup(plan, workload)
    outcome = SimulatedCluster(workload, policy_setup).run()

    assert [j.given.id for j in outcome.jobs] == [j.id for j in jobs]
    assert all(j.finished_s is not None and j.done >= j.given.iterations - 1e-6 for j in outcome.jobs)
    spans = sorted((h.gpu, h.begin_s, h.end_s) for h in outcome.held)
    for (gpu, _, end), (next_gpu, begin, _) in pairwise(spans):
        assert gpu != next_gpu or begin >= end
    for outage in outages:
        for h in outcome.held + outcome.on_cpu:
            if h.gpu[0] == outage.node:
                assert not (h.begin_s < outage.back_s and h.end_s > outage.at_s), (outage, h)
