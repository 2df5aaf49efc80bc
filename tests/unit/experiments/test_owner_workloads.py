"""Rights among users in whole simulated runs: nobody starves, and with one owner nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_scheduler.shares import DEFAULT_QUEUE, QueueShare, Shares
from benchmarks.sharing import measure
from experiments.workloads.owner_workloads import lab, starvation, without_owners
from experiments.workloads.sidecar_workloads import workload_s
from simulator.cluster import SimulatedCluster


def outcome(workload, policy="sidecar"):
    setup = next(one for one in workload.policy_setups if one.name == policy)
    return SimulatedCluster(workload, setup).run()


def told(run):
    """What was decided when, without the reasons."""
    return [(at_s, replace(decision, explanation=None)) for at_s, decision in run.decisions]


def test_a_stream_of_short_jobs_starves_another_user_only_without_rights():
    workload = starvation(hours=2)
    ours, theirs = measure(workload, "ada"), measure(without_owners(workload), "ada", workload)
    assert max(ours.others) < 60 < 7200 < max(theirs.others)
    assert ours.makespan < 1.02 * theirs.makespan


@pytest.mark.deep
def test_a_sweep_does_not_keep_the_other_users_of_a_lab_waiting():
    workload = lab(0)
    ours, theirs = measure(workload, "sweep"), measure(without_owners(workload), "sweep", workload)
    assert max(ours.others) < max(theirs.others) / 4
    assert ours.makespan < 1.05 * theirs.makespan


@pytest.mark.parametrize("seed", range(2))
def test_a_replay_of_one_user_is_the_same_in_each_decision_and_reason(seed):
    workload = workload_s(seed, count=25)
    named = replace(workload, jobs=tuple(replace(job, owner="ada") for job in workload.jobs))
    plain, ours = outcome(workload), outcome(named)
    assert ours.decisions == plain.decisions
    assert ours.waits == plain.waits


@pytest.mark.parametrize("seed", range(2))
def test_a_replay_of_one_user_is_the_same_where_rights_bind_without_a_reason(seed):
    workload = workload_s(seed, count=25)
    unreachable = Shares({DEFAULT_QUEUE: QueueShare(limit=10_000)})
    assert told(outcome(replace(workload, shares=unreachable))) == told(outcome(workload))


def test_the_limit_of_a_queue_holds_at_each_moment():
    workload = workload_s(0, count=20)
    jobs = tuple(replace(job, queue="ab"[i % 2], owner="ada") for i, job in enumerate(workload.jobs))
    limited = replace(workload, jobs=jobs, shares=Shares({"a": QueueShare(limit=3), "b": QueueShare()}))
    queue = {job.id: job.queue for job in jobs}
    changes = []
    for one in outcome(limited).held:
        if queue[one.job] == "a":
            changes += [(one.begin_s, 1), (one.end_s, -1)]
    most = holds = 0
    for _, change in sorted(changes):
        holds += change
        most = max(most, holds)
    assert most == 3
