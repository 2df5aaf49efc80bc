"""Promise: a row says of a run what makes sense for its jobs, and nothing else."""

from __future__ import annotations

import pytest

from adaptive_scheduler.decision import Explanation, Start
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import Node
from reshape_papers import report
from reshape_papers.commands.simulate import as_csv, as_table
from reshape_papers.run import compare
from simulator.scenario import Costs, CpuWork, PolicySetup, Submission, Workload

FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
WHY = Explanation("test", "because")


def job(job_id, core_s, arrival=0.0, **more):
    return Submission(job_id, "t", arrival, (0,), 100.0, 0, cpu=CpuWork(core_s, kind=job_id[0]), **more)


def together(snapshot, now):
    return tuple(Start(j.id, "w", 0, WHY) for j in snapshot.queue)


def one_by_one(snapshot, now):
    return () if snapshot.on_cpu["w"] else together(snapshot, now)[:1]


def summary(*jobs):
    policy_setups = [PolicySetup(n, p, FREE, Profiles(), Settings(systems=())) for n, p in PLANS.items()]
    workload = Workload("test", 0, jobs, (Node("w", "", cores=1.0),), tuple(policy_setups))
    rows = [run.row for run in compare(workload)]
    return report.summary(workload, rows)


PLANS = {"together": together, "one by one": one_by_one}


def rows_of(*jobs):
    return {row["policy"]: row for row in summary(*jobs)["rows"] if row["seed"] is None}


def test_jobs_on_cpu_are_compared_one_by_one_with_what_the_first_policy_made_of_them():
    rows = rows_of(job("a1", 10.0), job("b1", 10.0), job("b2", 20.0))
    # Together they end at 30, 30 and 40; one by one at 10, 20 and 40.
    row = rows["one by one"]
    assert (row["jobs_faster"], row["jobs_slower"]) == (2, 0)
    assert (row["best"], row["worst"]) == (pytest.approx(2 / 3), pytest.approx(0.0))
    assert (row["mean_faster"], row["mean_faster_s"]) == (pytest.approx((2 / 3 + 1 / 3) / 2), pytest.approx(15.0))
    assert (row["mean_slower"], row["mean_slower_s"]) == (0.0, 0.0), "none ends later"
    assert row["mean_gain"] == pytest.approx(0.3)
    assert row["mean_jct_by_kind_s"] == {"a": pytest.approx(10.0), "b": pytest.approx(30.0)}
    assert "jobs_faster" not in rows["together"]


def test_what_jobs_lose_on_average_is_negative_and_of_those_that_lose_only():
    found = report.gains({"a": 100.0, "b": 100.0, "c": 100.0}, {"a": 80.0, "b": 110.0, "c": 130.0})
    assert (found["mean_faster"], found["mean_slower"]) == (pytest.approx(0.2), pytest.approx(-0.2))
    assert (found["mean_faster_s"], found["mean_slower_s"]) == (pytest.approx(20.0), pytest.approx(-20.0))


def test_bounds_hold_for_jobs_on_cpu_too():
    row = rows_of(job("a", 10.0), job("b", 10.0), job("c", 20.0))["one by one"]
    assert row["fluid_makespan_s"] == pytest.approx(40.0)
    assert row["lp_makespan_s"] == pytest.approx(40.0)
    # Shortest first is the best there is for one core.
    assert row["jct_over_bound"] == pytest.approx(1.0)


def test_a_deadline_counts_as_failed_beyond_its_tolerance_and_as_met_without_it():
    rows = rows_of(job("a", 10.0, sla_s=9.8), job("b", 10.0, sla_s=15.0), job("c", 10.0, sla_s=30.0), job("d", 1.0))
    row = rows["one by one"]
    assert (row["failed"], row["sla_met_share"], row["rescheduled"]) == (1, pytest.approx(1 / 3), 0)
    assert row["art_s"] == pytest.approx((10 + 20 + 30 + 31) / 4)


def test_work_that_is_lost_in_a_crash_is_told():
    row = rows_of(job("a", 1000.0, fails_at=(0.7,)))["together"]
    assert (row["crashes"], row["lost_work_s"]) == (1, pytest.approx(100.0))


def test_only_columns_that_make_sense_are_printed():
    result = summary(job("a", 10.0), job("b", 10.0))
    head = as_csv(result["rows"]).splitlines()[0].split(",")
    assert "mean_cores_in_use" in head
    assert not {"adds", "mean_gpus_in_use", "art_s", "crashes", "mean_jct_by_kind_s"} & set(head)
    titles = as_table(result).splitlines()[2]
    assert "CORES" in titles
    assert "GPUS" not in titles
    assert [c["against"] for c in result["comparisons"]] == ["together"]
