"""Jobs of a simulation that train until a target: what the scheduler believes of them, and what wrong beliefs cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_scheduler.engine import decide
from adaptive_scheduler.snapshot import ClusterSnapshot
from reshape_papers.workloads import build
from simulator.accuracy_targets import AccuracyTarget, told
from simulator.cluster import SimulatedCluster
from simulator.scenario import Submission
from simulator.snapshots import job_view
from simulator.state import SimulatedJob

CURVE = tuple((k, 1 - 1 / (1 + 0.01 * k)) for k in range(50, 2050, 50))
AIM = AccuracyTarget(target=0.9, curve=CURVE, known=(), epoch=100.0, most=2000.0)
PROFILED = replace(AIM, known=CURVE[:3])


def test_a_job_is_as_long_as_it_takes_to_measure_its_target():
    assert AIM.length == 900
    assert replace(AIM, target=0.99).length == 2000, "its maximum"
    assert replace(AIM, most=300.0).length == 300


def test_the_scheduler_predicts_from_what_was_measured_so_far():
    assert AIM.left(120.0) == 1880, "two points are no curve: its maximum"
    assert AIM.left(160.0) == pytest.approx(740, rel=0.02)
    assert PROFILED.left(0.0) == pytest.approx(900, rel=0.02)


def test_a_job_that_should_be_over_is_given_another_epoch():
    early = AccuracyTarget(target=0.9, curve=(), known=CURVE[:3], epoch=100.0, most=2000.0)
    assert early.left(930.0) == pytest.approx(100)
    assert early.left(1990.0) == pytest.approx(10)


def test_the_snapshot_tells_target_value_and_whether_the_length_is_only_a_maximum():
    started = SimulatedJob(Submission("a", "t", 0.0, (1,), iterations=AIM.length, fixed_gpus=1, accuracy_target=AIM))
    started.done = 120.0
    job = job_view(started, 0.0)
    assert (job.target, job.value, job.epoch_iterations, job.length_unsure) == (0.9, CURVE[1][1], 100, True)
    started.done = 160.0
    assert not job_view(started, 0.0).length_unsure


def test_a_policy_that_is_told_other_lengths_sees_those():
    jobs = [Submission("a", "t", 0.0, (1,), iterations=100.0, fixed_gpus=1)]
    seen: list[float] = []

    def looks(snapshot, now):
        seen.append(snapshot.jobs[0].iterations_left)
        return ()

    def asked(done, **how):
        told(jobs, looks, **how)(ClusterSnapshot((), (job_view(started(done), 0.0),)), 0.0)
        return seen[-1]

    def started(done):
        started = SimulatedJob(jobs[0])
        started.done = done
        return started

    assert asked(30.0) == 70.0
    assert asked(0.0, error=0.3) != 100.0
    assert 70.0 <= asked(0.0, error=0.3) <= 130.0
    assert asked(99.9, error=0.3, seed=1) >= 1.0


def test_lengths_that_are_wrong_by_30_per_cent_cost_little():
    """Workload S, lengths wrong by 30 %: mean completion time at most 1.10 times that with true ones."""
    told_right, misled = 0.0, 0.0
    for seed in range(3):
        workload = build("workload-s", seed)
        ours = workload.policy_setups[-1]
        told_right += mean_jct(workload, ours)
        misled += mean_jct(workload, replace(ours, plan=told(workload.jobs, decide, 0.3, seed)))
    assert misled / told_right <= 1.10
    assert misled != told_right


def mean_jct(workload, policy_setup):
    jobs = SimulatedCluster(workload, policy_setup).run().jobs
    return sum(job.finished_s - job.given.arrival_s for job in jobs) / len(jobs)
