"""Seed 003 simulated: how Volcano places, and what deadlines bring beside 90 % dummy load and on real traces."""

from __future__ import annotations

import os
import statistics
from functools import cache
from pathlib import Path

import pytest

from adaptive_scheduler.decision import Requeue, Start
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Task
from reshape_papers import volcano_policy
from reshape_papers.workloads import build, deadline_workloads, is_drawn
from simulator.cluster import SimulatedCluster
from simulator.scenario import NoWorkload

DATA = os.environ.get("RESHAPE_DATA")
with_data = pytest.mark.skipif(not DATA, reason="needs other people's traces: set RESHAPE_DATA to their folder")


def on_cpu(job_id, state="submitted", cores=1.0, name="train", **more):
    return Job(job_id, "mnist", state, (0,), tasks=(Task(name, cores=cores),), **more)


def world(*jobs):
    return ClusterSnapshot((Node("a", "", cores=4.0), Node("b", "", cores=4.0)), jobs)


def started(planner, snapshot):
    return [(d.job, d.node) for d in planner(snapshot, 0.0) if isinstance(d, Start)]


def test_the_three_placements_choose_the_emptiest_the_fullest_and_the_node_of_its_like():
    busy = on_cpu("x", "running", 2.0, "extract", node="b"), on_cpu("y", "running", 1.0, "other", node="a")
    snapshot = world(*busy, on_cpu("new", name="extract"))
    where = {
        name: started(volcano_policy.alone(score), snapshot)[0][1] for name, score in volcano_policy.PLACEMENTS.items()
    }
    assert where == {"gang": "a", "binpack": "b", "task-topology": "b"}


def test_all_pods_of_a_task_start_or_none():
    three = Job("new", "mnist", "submitted", (0,), tasks=(Task("train", cores=1.5, replicas=3),))
    assert started(volcano_policy.alone(volcano_policy.gang), world(three)) == []


def test_a_job_that_fits_passes_one_that_does_not_unless_nobody_may_pass():
    snapshot = world(on_cpu("big", cores=5.0), on_cpu("small", submit_s=1))
    assert started(volcano_policy.alone(volcano_policy.gang), snapshot) == [("small", "a")]
    assert started(volcano_policy.alone(volcano_policy.gang, passes=False), snapshot) == []


def test_edf_starts_the_earliest_deadline_first_and_jobs_without_one_last():
    jobs = [on_cpu("none", cores=4), on_cpu("late", cores=4, sla_s=9), on_cpu("soon", cores=4, submit_s=1, sla_s=2)]
    assert [
        job for job, _ in started(volcano_policy.alone(volcano_policy.gang, volcano_policy.by_deadline), world(*jobs))
    ] == [
        "soon",
        "late",
    ]


# what deadlines bring

SEEDS = range(4)


@cache
def outcomes(placement):
    """Mean response time, share of deadlines met and requeues of each policy."""
    found = {}
    for seed in SEEDS:
        workload = build(f"deadline-{placement}", seed)
        for policy_setup in (c for c in workload.policy_setups if c.name != "edf"):
            outcome = SimulatedCluster(workload, policy_setup).run()
            assert len(outcome.jobs) == deadline_workloads.JOBS
            found.setdefault(policy_setup.name, []).append((*responses(outcome.jobs), outcome.requeues))
    return {name: tuple(map(statistics.fmean, zip(*rows, strict=True))) for name, rows in found.items()}


def responses(jobs):
    times = [(job.finished_s - job.given.arrival_s, job.given.sla_s) for job in jobs]
    met = [took <= sla for took, sla in times if sla is not None]
    return statistics.fmean(took for took, _ in times), sum(met) / len(met)


@pytest.mark.deep
@pytest.mark.parametrize("placement", volcano_policy.PLACEMENTS)
def test_deadlines_lower_response_time_and_missed_deadlines_below_fifo_at_90_percent_load(placement):
    found = outcomes(placement)
    for ours in (f"{placement}+deadlines", "deadline"):
        for fifo in ("fifo", placement):
            assert found[ours][0] < found[fifo][0] and found[ours][1] > found[fifo][1], (ours, fifo, found)
        assert found[ours][2] > 0, "overdue jobs gave way"


def test_the_same_seed_gives_the_same_workload_and_another_seed_another():
    one, again, other = (build("deadline-gang", seed) for seed in (3, 3, 4))
    assert one.jobs == again.jobs and one.observations == again.observations and one.jobs != other.jobs


def test_the_three_placements_run_the_same_jobs():
    assert len({build(f"deadline-{placement}", 1).jobs for placement in volcano_policy.PLACEMENTS}) == 1


def test_a_job_that_gave_way_starts_again_only_after_those_it_gave_way_to():
    workload = build("deadline-gang", 2)
    policy_setup = next(c for c in workload.policy_setups if c.name == "deadline")
    decisions = SimulatedCluster(workload, policy_setup).run().decisions
    yields = [(at, d) for at, d in decisions if isinstance(d, Requeue)]
    assert yields, "this draw has some"
    for at, requeue in yields:
        starts = [(start, d.job) for start, d in decisions if isinstance(d, Start) and start >= at]
        again = min(start for start, job in starts if job == requeue.job)
        assert all(min(start for start, job in starts if job == other) <= again for other in requeue.yields_to)


# real traces


def test_without_the_traces_a_sentence_says_what_to_do():
    with pytest.raises(NoWorkload, match="set RESHAPE_DATA"):
        build("deadline-traces-pollux", 0)
    assert not is_drawn("deadline-traces-pollux")


@with_data
@pytest.mark.deep
@pytest.mark.parametrize("name", ["pollux", "philly"])
def test_on_elasticflows_traces_we_miss_fewer_deadlines_than_fifo(name):
    workload = build(f"deadline-traces-{name}", 0, Path(DATA))
    found = {
        c.name: responses(SimulatedCluster(workload, c).run().jobs) for c in workload.policy_setups if c.name != "edf"
    }
    assert found["deadline"][1] > found["fifo"][1] and found["deadline"][0] < found["fifo"][0]
    assert found["deadline"][1] >= found["elastic-fifo"][1], "the order by deadline costs none"
