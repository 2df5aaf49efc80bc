"""Rights among users in whole simulated runs: nobody starves, and with one owner nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_scheduler.shares import DEFAULT_QUEUE, QueueShare, Shares
from benchmarks.sharing import longest_wait_of_others
from benchmarks.sharing_figures import POLICIES, alone_times, jain_index, measure
from reshape_papers.workloads.owner_workloads import TEAM_WEIGHTS, lab, starvation, three_teams
from reshape_papers.workloads.sidecar_workloads import workload_s
from simulator.cluster import SimulatedCluster


def outcome(workload, policy="sidecar"):
    setup = next(one for one in workload.policy_setups if one.name == policy)
    return SimulatedCluster(workload, setup).run()


def told(run):
    """What was decided when, without the reasons."""
    return [(at_s, replace(decision, explanation=None)) for at_s, decision in run.decisions]


def test_a_stream_of_short_jobs_starves_another_user_only_without_rights():
    workload = starvation(hours=2)
    alone = alone_times(workload)
    found = {name: measure(workload, shown, alone) for name, shown in POLICIES.items()}
    waited = {name: longest_wait_of_others(workload, one, "ada") for name, one in found.items()}
    assert waited["rights"] < 60 < 7200 < waited["no rights"]
    assert found["rights"].longest_claim < 60 < 7200 < found["no rights"].longest_claim
    assert found["rights"].makespan < 1.02 * found["no rights"].makespan
    assert waited["suspend only"] < 60, "no job here can shrink, so nothing else is different"


def test_three_teams_take_gpus_back_by_shrinking_or_where_they_cannot_by_suspending():
    workload = three_teams(workload_s(0, count=10), 0)
    assert {job.queue for job in workload.jobs} == set(TEAM_WEIGHTS)
    alone = alone_times(workload)
    assert alone.keys() == {job.id for job in workload.jobs}
    for name, shown in POLICIES.items():
        one = measure(workload, shown, alone)
        assert 0 < one.jain <= 1 and one.worst_slow_down > 0 and len(one.waits) == 10, name


def test_the_index_of_jain_is_1_for_equals_and_a_part_for_one_who_has_all():
    assert jain_index([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain_index([3.0, 0.0, 0.0]) == pytest.approx(1 / 3)


@pytest.mark.deep
def test_a_sweep_does_not_keep_the_other_users_of_a_lab_waiting():
    workload = lab(0)
    alone = alone_times(workload)
    ours, theirs = (measure(workload, POLICIES[name], alone) for name in ("rights", "no rights"))
    waits = [longest_wait_of_others(workload, one, "sweep") for one in (ours, theirs)]
    assert waits[0] < waits[1] / 4
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
