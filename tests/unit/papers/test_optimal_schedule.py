"""The exact search is at least as good as every policy that never changes a job, and what it plans is what happens."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from adaptive_scheduler.profiles.profiles import Profiles
from reshape_papers import comparison_policies, optimal_schedule, sidecar_baselines
from reshape_papers.optimal_schedule import NodeTimeline, UninterruptedJob, schedule
from reshape_papers.report import bounds_of
from reshape_papers.workloads.sidecar_workloads import workload_s
from simulator.cluster import SimulatedCluster
from simulator.scenario import Costs, NoWorkload, PolicySetup

FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def one_host(*free):
    return [NodeTimeline("a", "GPU", free)]


def end(plan):
    return max(planned.end_s for planned in plan)


def small(seed, count=5, gpus=8):
    """Some jobs of workload S that come close together, changes for nothing."""
    workload = workload_s(seed, count=count)
    jobs = tuple(replace(job, arrival_s=job.arrival_s / 20) for job in workload.jobs)
    node = replace(workload.nodes[0], gpus=workload.nodes[0].gpus[:gpus])
    ours = workload.policy_setups[-1]
    policy_setup = PolicySetup(ours.name, ours.plan, FREE, Profiles(ours.profiles.speeds))
    return replace(workload, jobs=jobs, nodes=(node,), policy_setups=(policy_setup,))


def run(workload, plan):
    outcome = SimulatedCluster(workload, replace(workload.policy_setups[-1], plan=plan)).run()
    return max(job.finished_s for job in outcome.jobs)


def test_two_jobs_share_the_host_when_that_ends_earlier_than_one_after_the_other():
    ways = {("GPU", 1): 100.0, ("GPU", 2): 80.0}
    assert (
        end(schedule([UninterruptedJob("a", 0.0, ways), UninterruptedJob("b", 0.0, ways)], one_host(0.0, 0.0))) == 100.0
    )


def test_the_long_job_goes_first_though_the_short_one_was_submitted_first():
    short, long = UninterruptedJob("short", 0.0, {("GPU", 1): 10.0}), UninterruptedJob("long", 0.0, {("GPU", 2): 50.0})
    third = UninterruptedJob("third", 0.0, {("GPU", 1): 10.0})
    assert end(schedule([short, long, third], one_host(0.0, 0.0))) == 60.0


def test_it_leaves_a_gpu_idle_for_a_job_that_is_still_to_come_where_that_pays():
    now = UninterruptedJob("now", 0.0, {("GPU", 1): 100.0, ("GPU", 2): 60.0})
    wide = UninterruptedJob("wide", 5.0, {("GPU", 2): 100.0})
    plan = schedule([now, wide], one_host(0.0, 0.0))
    assert end(plan) == 160.0
    assert plan[0].job == "now"


def test_of_equal_makespans_it_takes_the_least_sum_of_ends():
    jobs = [UninterruptedJob("long", 0.0, {("GPU", 1): 90.0}), UninterruptedJob("short", 0.0, {("GPU", 1): 10.0})]
    assert [planned.job for planned in schedule(jobs, one_host(0.0))] == ["short", "long"]


def test_counts_that_are_fixed_are_kept():
    ways = {("GPU", 1): 100.0, ("GPU", 2): 60.0}
    assert schedule([UninterruptedJob("a", 0.0, ways)], one_host(0.0, 0.0), {"a": 1})[0].num_gpus == 1


def test_more_jobs_than_can_be_searched_are_refused_with_a_sentence():
    jobs = [UninterruptedJob(str(i), 0.0, {("GPU", 1): 1.0}) for i in range(8)]
    with pytest.raises(NoWorkload, match="at most 7 jobs, not 8; take a smaller workload"):
        schedule(jobs, one_host(0.0))


@pytest.mark.parametrize("seed", range(6))
def test_what_it_plans_is_what_happens_in_the_world(seed):
    workload = small(seed)
    plan = schedule(optimal_schedule.uninterrupted_jobs(workload), [NodeTimeline("node", "GPU", (0.0,) * 8)])
    assert run(workload, comparison_policies.PLANNERS["exact"](workload)) == pytest.approx(end(plan))


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_starts_with_fixed_counts_is_better(seed):
    workload = small(seed, count=4)
    counts = {job.id: min(job.fixed_gpus, 8) for job in workload.jobs}
    jobs = optimal_schedule.uninterrupted_jobs(workload)
    best = end(schedule(jobs, one_host(*(0.0,) * 8), counts))
    for order in itertools.permutations(jobs):
        free, last, latest = [0.0] * 8, 0.0, 0.0
        for job in order:
            n = counts[job.id]
            last = max(last, job.arrival_s, sorted(free)[n - 1])
            done = last + job.seconds["GPU", n]
            free = [*sorted(free)[n:], *[done] * n]
            latest = max(latest, done)
        assert best <= latest + 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_it_lies_between_the_bound_and_the_default_policy(seed):
    workload = small(seed)
    best = run(workload, comparison_policies.PLANNERS["exact"](workload))
    first = min(job.arrival_s for job in workload.jobs)
    assert bounds_of(workload)["lp_makespan_s"] <= best - first + 1e-6
    assert best <= run(workload, sidecar_baselines.default(workload.jobs)) + 1e-6
    assert best <= run(workload, comparison_policies.PLANNERS["gavel-fifo"](workload)) + 1e-6
