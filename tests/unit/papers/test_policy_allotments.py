"""What defines Tiresias, SRTF, Optimus, Pollux and EDF, on a handful of jobs; and the event world carries it out."""

from __future__ import annotations

import pytest

from adaptive_scheduler.profiles.profiles import Profiles
from reshape_papers import comparison_policies
from reshape_papers.comparison_policies.allotment import AllotmentRequest
from reshape_papers.comparison_policies.allotment_policy import allotment_requests
from reshape_papers.comparison_policies.optimus import optimus
from reshape_papers.comparison_policies.pollux import Pollux
from reshape_papers.comparison_policies.single_order import edf, srtf
from reshape_papers.comparison_policies.tiresias import Tiresias
from reshape_papers.workloads.sidecar_workloads import workload_s
from simulator.cluster import SimulatedCluster
from tests.unit.adaptive_scheduler.worlds import cluster, node, running, speed_rows, waiting

LINEAR = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}
FADING = {1: 1.0, 2: 1.5, 4: 1.8, 8: 1.9}


def job(job_id, work=1000.0, asked=1, has=0, speed_ups=LINEAR, **more):
    fields = {"submit_s": 0.0, "attained": 0.0} | more
    return AllotmentRequest(
        job_id, counts=tuple(speed_ups), asked=asked, has=has, seconds=lambda n: work / speed_ups[n], **fields
    )


def test_srtf_runs_the_shortest_first_and_passes_over_what_does_not_fit():
    jobs = [job("long", 900, asked=2), job("wide", 3000, asked=4), job("short", 100, asked=1)]
    assert dict(srtf(jobs, 4, 0.0)) == {"short": 1, "long": 2}


def test_srtf_measures_a_job_on_the_count_it_asked_for():
    assert list(srtf([job("one", 500), job("eight", 1600, asked=8)], 16, 0.0)) == ["eight", "one"]


def test_edf_gives_the_earliest_deadline_all_it_can_use_and_no_deadline_the_rest():
    jobs = [job("none"), job("late", due_s=900.0), job("soon", due_s=100.0)]
    assert dict(edf(jobs, 11, 0.0)) == {"soon": 8, "late": 2, "none": 1}


def test_tiresias_puts_who_has_had_its_share_behind_newcomers():
    policy = Tiresias((100.0,))
    assert dict(policy([job("old", asked=4)], 4, 0.0)) == {"old": 4}
    old, new = job("old", asked=4, has=4, attained=99.0), job("new", asked=4)
    assert dict(policy([old, new], 4, 25.0)) == {"old": 4}
    assert dict(policy([job("old", asked=4, has=4, attained=100.0), new], 4, 26.0)) == {"new": 4}


def test_tiresias_says_when_the_next_job_falls():
    policy = Tiresias((100.0, 300.0))
    jobs = [job("a", asked=4, has=4, attained=60.0), job("b", asked=1, has=1, attained=20.0)]
    policy(jobs, 8, 7.0)
    assert policy.next_change_s(jobs, 7.0) == 7.0 + 40.0 / 4


def test_tiresias_does_not_let_a_job_fall_two_queues_at_once():
    policy = Tiresias((10.0, 20.0))
    jobs = [job("a", attained=50.0), job("b", attained=15.0), job("c", attained=0.0)]
    policy(jobs, 0, 0.0)
    assert list(policy(jobs, 8, 60.0)) == ["c", "b", "a"]


def test_optimus_starts_everybody_before_it_lets_anybody_grow():
    given = optimus([job("huge", 1e6), job("small", 10.0)], 2, 0.0)
    assert dict(given) == {"huge": 1, "small": 1}


def test_optimus_gives_each_step_to_whoever_gains_most_for_each_gpu():
    # The long job gains 500 s by a second GPU, then 125 s by each of two more; the fading one 200 s, then 33 s.
    jobs = [job("long", 1000.0), job("fading", 600.0, speed_ups=FADING)]
    assert dict(optimus(jobs, 3, 0.0)) == {"fading": 1, "long": 2}
    assert dict(optimus(jobs, 4, 0.0)) == {"long": 2, "fading": 2}
    assert dict(optimus(jobs, 6, 0.0)) == {"fading": 2, "long": 4}


def test_optimus_grows_nobody_who_would_become_slower():
    assert dict(optimus([job("a", speed_ups={1: 1.0, 2: 0.9})], 8, 0.0)) == {"a": 1}


def test_optimus_hands_what_a_wide_step_leaves_to_the_next_best():
    # After both have 2, the long job's next step takes 2 GPUs and only 1 is left.
    jobs = [job("long", 9000.0, speed_ups={2: 2.0, 4: 4.0}), job("odd", 900.0, speed_ups={2: 2.0, 3: 3.0})]
    assert dict(optimus(jobs, 5, 0.0)) == {"long": 2, "odd": 3}


def seasoned(job_id, **more):
    """Old enough that a restart costs it next to nothing, and profiled up to 8 GPUs."""
    return job(job_id, **({"has": 8, "age_s": 1e9} | more))


def test_pollux_shares_equally_among_equals():
    given = Pollux()([seasoned("a"), seasoned("b")], 8, 0.0)
    assert dict(given) == {"a": 4, "b": 4}


def test_pollux_gives_gpus_to_whoever_speeds_up_by_them():
    given = Pollux()([seasoned("scales"), seasoned("fades", speed_ups=FADING)], 10, 0.0)
    assert given["scales"] > given["fades"] >= 1


def test_pollux_lets_a_newcomer_grow_only_to_twice_what_it_has_had():
    policy = Pollux()
    assert dict(policy([job("a", age_s=1e9)], 8, 0.0)) == {"a": 1}
    assert dict(policy([job("a", has=1, age_s=1e9)], 8, 60.0)) == {"a": 2}
    assert dict(policy([job("a", has=2, age_s=1e9)], 8, 120.0)) == {"a": 4}


def test_pollux_leaves_a_young_job_alone_that_was_restarted_often():
    young = job("a", has=2, age_s=100.0, restarts=3)
    assert dict(Pollux()([young], 8, 0.0)) == {"a": 2}


def test_pollux_finds_the_counts_that_a_full_search_finds():
    tables = [LINEAR, FADING, {1: 1.0, 2: 1.9, 4: 2.0, 8: 3.9}]
    jobs = [seasoned(str(i), speed_ups=table) for i, table in enumerate(tables)]
    given = Pollux()(jobs, 9, 0.0)
    fair = {0: 2.0, 1: 1.5, 2: 1.9}  # on 2 GPUs, the largest allowed count up to a third of nine

    def cost(counts):
        each = [tables[i][n] / fair[i] if n else 0.0 for i, n in enumerate(counts)]
        return sum(1.0 / (s + 0.004) for s in each)

    options = (0, 1, 2, 4, 8)
    every = [(a, b, c) for a in options for b in options for c in options if a + b + c <= 9]
    assert cost([given.get(str(i), 0) for i in range(3)]) == pytest.approx(min(map(cost, every)))


@pytest.mark.parametrize("name", ["tiresias", "srtf", "optimus", "pollux", "edf", "gavel-makespan", "gavel-max-min"])
def test_every_policy_brings_all_jobs_of_a_workload_to_their_end(name):
    workload = workload_s(3, count=12)
    outcome = SimulatedCluster(workload, comparison_policies.policy_setup(name, workload)).run()
    assert len(outcome.jobs) == 12
    assert all(job.finished_s is not None for job in outcome.jobs)


def test_srtf_does_not_take_a_job_for_longer_because_it_runs_on_slower_gpus():
    profiles = Profiles.from_rows([*speed_rows(), *speed_rows(gpu_type="K80", speed_up={1: 0.2, 2: 0.34, 4: 0.48})])
    slow = running("slow", 4, left=1000, node="b")
    other = waiting("other", left=1001, submit_s=1.0)
    picture = cluster(slow, other, nodes=(node("a", used=4), node("b", used=4, gpu_type="K80")), profiles=profiles)
    seen = {job.id: job.seconds(4) for job in allotment_requests(picture, 5.0, {"slow": 4, "other": 4})}
    assert seen["slow"] < seen["other"]


@pytest.mark.parametrize("name", ["tiresias", "srtf"])
def test_rigid_policies_never_run_a_job_on_another_count_than_it_asked_for(name):
    workload = workload_s(5, count=12)
    outcome = SimulatedCluster(workload, comparison_policies.policy_setup(name, workload)).run()
    asked = {job.id: job.fixed_gpus for job in workload.jobs}
    starts = [d for _, d in outcome.decisions if hasattr(d, "num_gpus")]
    assert starts
    assert all(decision.num_gpus == asked[decision.job] for decision in starts)
