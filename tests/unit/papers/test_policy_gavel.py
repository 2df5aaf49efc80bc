"""Gavel's shares of time are the best there are, and its turns give every job its share."""

from __future__ import annotations

import pytest

from reshape_papers.comparison_policies import gavel
from reshape_papers.comparison_policies.gavel import GavelRounds, TimeShareJob

POOL = {"V100": 1, "K80": 1}


def throughput(job, shares):
    return sum(share / job.seconds[kind] for kind, share in shares[job.id].items() if kind in job.seconds)


def test_max_min_gives_equals_the_same_throughput_and_wastes_nothing():
    jobs = [TimeShareJob(name, 1, {"V100": 100.0, "K80": 400.0}) for name in "ab"]
    shares = gavel.max_min(jobs, POOL)
    # Both together get 1/100 + 1/400 a second.
    assert [throughput(job, shares) for job in jobs] == pytest.approx([0.00625, 0.00625])


def test_max_min_equalises_throughput_against_an_equal_share_of_the_cluster():
    slow, mild = {"V100": 100.0, "K80": 1000.0}, {"V100": 100.0, "K80": 110.0}
    jobs = [TimeShareJob("a", 1, slow), TimeShareJob("b", 1, slow), TimeShareJob("mild", 1, mild)]
    shares = gavel.max_min(jobs, POOL)
    normalised = [throughput(job, shares) / (0.5 / job.seconds["V100"] + 0.5 / job.seconds["K80"]) for job in jobs]
    assert normalised == pytest.approx([normalised[0]] * 3)
    assert normalised[0] > 2 / 3  # better for all three than a third of each machine: the point of the paper
    assert shares["a"]["V100"] > shares["mild"]["V100"]


def test_max_min_counts_gpus_so_that_a_wide_job_gets_less_time():
    jobs = [TimeShareJob("wide", 4, {"V100": 100.0}), TimeShareJob("narrow", 1, {"V100": 100.0})]
    shares = gavel.max_min(jobs, {"V100": 4})
    assert shares["narrow"]["V100"] / shares["wide"]["V100"] == pytest.approx(4.0)


def test_makespan_lets_all_jobs_end_together_as_early_as_the_machines_allow():
    jobs = [
        TimeShareJob("long", 1, {"V100": 300.0, "K80": 600.0}),
        TimeShareJob("short", 1, {"V100": 100.0, "K80": 200.0}),
    ]
    shares = gavel.makespan(jobs, POOL)
    # 400 s of V100 work for machines that do 1 + 1/2 of it a second, but the long job alone needs 300 s on the V100.
    assert max(1 / throughput(job, shares) for job in jobs) == pytest.approx(300.0)


def test_no_job_and_no_type_is_given_more_than_all_of_the_time():
    jobs = [TimeShareJob(str(i), 1 + i % 3, {"V100": 50.0 + i, "K80": 90.0 + 7 * i}) for i in range(9)]
    for objective in (gavel.makespan, gavel.max_min):
        shares = objective(jobs, {"V100": 4, "K80": 3})
        assert all(sum(shares[job.id].values()) <= 1 + 1e-9 for job in jobs)
        for kind, gpus in (("V100", 4), ("K80", 3)):
            assert sum(shares[job.id][kind] * job.asked for job in jobs) <= gpus + 1e-9


def test_a_job_gets_no_time_on_a_type_it_cannot_run_on():
    shares = gavel.makespan([TimeShareJob("a", 1, {"V100": 10.0})], POOL)
    assert shares["a"]["K80"] == 0.0


def test_fifo_lets_the_first_that_does_not_fit_hold_up_all_behind():
    jobs = [
        TimeShareJob("a", 2, {"V100": 9.0}),
        TimeShareJob("b", 4, {"V100": 9.0}),
        TimeShareJob("c", 1, {"V100": 9.0}),
    ]
    shares = gavel.fifo(jobs, {"V100": 4})
    assert [shares[name]["V100"] for name in "abc"] == [1.0, 0.0, 0.0]


def test_turns_near_the_shares_after_many_rounds():
    jobs = [TimeShareJob("wide", 4, {"V100": 1e6}), *(TimeShareJob(f"n{i}", 1, {"V100": 1e6}) for i in range(4))]
    turns, rounds = GavelRounds(gavel.max_min, 60.0), {job.id: 0 for job in jobs}
    for _ in range(200):
        for job, kind in turns.pick(jobs, {"V100": 4}).items():
            turns.ran(job, kind, 60.0)
            rounds[job] += 1
    shares = gavel.max_min(jobs, {"V100": 4})
    assert {name: count / 200 for name, count in rounds.items()} == pytest.approx(
        {name: share["V100"] for name, share in shares.items()}, abs=0.05
    )


def test_turns_never_hand_out_more_gpus_than_there_are():
    jobs = [TimeShareJob(str(i), 1 + i % 4, {"V100": 100.0, "K80": 150.0}) for i in range(11)]
    turns, pool = GavelRounds(gavel.max_min, 60.0), {"V100": 5, "K80": 4}
    asked = {job.id: job.asked for job in jobs}
    for _ in range(20):
        picked = turns.pick(jobs, pool)
        assert picked
        for kind, gpus in pool.items():
            assert sum(asked[job] for job, on in picked.items() if on == kind) <= gpus
        for job, kind in picked.items():
            turns.ran(job, kind, 60.0)
