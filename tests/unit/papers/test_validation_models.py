"""The worlds that other people's figures come from keep their time, and policies in them come out as published."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from reshape_papers import pollux_jobs
from reshape_papers.comparison_policies import gavel
from reshape_papers.comparison_policies.single_order import edf, srtf
from reshape_papers.comparison_policies.tiresias import Tiresias
from reshape_papers.validation import elasticflow_figures, pollux_figures, slots
from reshape_papers.validation import gavel_figures as gavel_rows
from reshape_papers.validation.gavel_figures import GavelJob
from reshape_papers.validation.rounds import RoundedJob, Rounds, placement_of, take_gpus
from reshape_papers.validation.slots import SlotJob

DATA = os.environ.get("RESHAPE_DATA")
with_data = pytest.mark.skipif(not DATA, reason="needs figures that others published: set RESHAPE_DATA to their folder")


def write(path, head, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(","), *rows])


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """A step of a tenth of a second on any GPUs, two epochs of 500 updates, batches that gain nothing or all."""
    data = tmp_path_factory.mktemp("data")
    head = "application,model,dataset,max_epochs,max_local_bsz_override"
    write(data / "pollux/applications.csv", head, [["x", "", "", 2, ""]])
    home = data / "pollux/traces/x"
    placements = [[p, local, 0.1, 0.02] for p in (1, 2, 4, 44) for local in (8, 16, 32, 64)]
    write(home / "placements.csv", "placement,local_bsz,step_time,sync_time", placements)
    spread = [[n, n * 4, local, 0.1, 0.02] for n in (3, 16) for local in (8, 64)]
    write(home / "scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time", spread)
    for batch in (32, 64, 128):
        epochs = [[500 * e, 500 * e * 32 // batch, 0.5, 1.0, 1e9] for e in (1, 2)]
        write(home / f"validation-{batch}.csv", "progress,iteration,metric,grad_sqr,grad_var", epochs)
    return pollux_jobs.read(data)["x"]


def one_gpu(job):
    return (1,)


def test_a_job_of_the_rounds_starts_with_a_round_loses_30_s_and_ends_in_whole_seconds(app):
    job = RoundedJob("a", app, submit_s=61.0, asked=1, batch=32)
    done = Rounds([job], srtf, one_gpu).run()[0]
    # Seen at 120 s, trains from 150 s, 1,000 updates of a tenth of a second.
    assert done.finished_s == 250.0
    assert done.attained == 130.0


def test_jobs_of_the_rounds_are_not_changed_themselves(app):
    job = RoundedJob("a", app, 0.0, 1, 32)
    Rounds([job], srtf, one_gpu).run()
    assert job.finished_s is None


def test_a_larger_batch_that_wastes_nothing_needs_fewer_updates(app):
    # Noise a billion times the signal: twice the batch is worth twice the progress.
    done = Rounds([RoundedJob("a", app, 0.0, 4, 128)], srtf, one_gpu).run()[0]
    assert done.finished_s == pytest.approx(60.0 + 30.0 + 25.0, abs=1.0)


def test_one_gpu_alone_accumulates_a_batch_above_the_smallest(app):
    assert app.shape(64, 1) == pollux_jobs.BatchShape(32, 1)
    assert app.shape(64, 2) == pollux_jobs.BatchShape(32, 0)
    assert app.seconds((1,), app.shape(64, 1)) == pytest.approx(0.1 + 0.08)


def test_tuned_jobs_take_the_batch_of_most_progress(app):
    rate, shape = app.best((4,), 0)
    assert shape.local * 4 == 128
    assert rate == pytest.approx(4 / 0.1, rel=1e-6)


def test_gpus_come_from_the_emptiest_node():
    free = [1, 4, 3]
    assert placement_of(take_gpus(free, 6)) == (4, 2)
    assert free == [1, 0, 1]


def slot_job(name, submit, due, work, rates, asked=1):
    return SlotJob(name, float(submit), float(due), asked, float(work), rates)


def test_decisions_of_the_slots_are_a_minute_apart_but_ends_are_exact():
    jobs = [slot_job("a", 0, 100, 30, {1: 1.0}), slot_job("b", 10, 999, 30, {1: 1.0})]
    assert [job.finished_s for job in slots.run(jobs, 1, edf)] == [30.0, 90.0]


def test_an_earlier_deadline_takes_the_gpus_of_a_running_job():
    jobs = [slot_job("late", 0, 9999, 200, {1: 1.0}), slot_job("soon", 60, 200, 100, {1: 1.0})]
    done = {job.name: job.finished_s for job in slots.run(jobs, 1, edf)}
    assert done == {"soon": 160.0, "late": 300.0}


def test_a_start_in_the_slots_costs_its_standstill():
    job = slot_job("a", 0, 100, 30, {4: 1.0}, asked=4)
    assert slots.run([job], 4, srtf, lambda count, anew: 2.0 * count)[0].finished_s == 38.0


def test_tiresias_in_the_slots_acts_when_a_job_has_had_its_share():
    policy = Tiresias((100.0,))
    jobs = [slot_job("old", 0, 9999, 500, {1: 1.0}), slot_job("new", 1, 9999, 50, {1: 1.0})]
    done = {j.name: j.finished_s for j in slots.run(jobs, 1, policy, next_change=policy.next_change_s)}
    assert done == {"new": 170.0, "old": 560.0}  # it falls at 100 s, which is decided on a minute after the last time


def test_a_round_of_gavel_lasts_as_long_as_its_longest_job():
    jobs = [GavelJob("a", 5.0, 1, 30.0), GavelJob("b", 5.0, 1, 150.0)]
    assert gavel_rows.makespan_s(jobs, 2, gavel.fifo) == 150.0
    assert gavel_rows.makespan_s(jobs, 1, gavel.fifo) == 180.0


def test_gavels_own_figures_for_its_two_programs_are_met():
    holds = {row.name.split(".")[2]: row.holds for row in gavel_rows.rows(Path())}
    assert holds == {"fifo": False, "max_min": True, "makespan": True}


@with_data
@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
def test_a_workload_of_pollux_comes_out_as_published_to_the_second(policy):
    apps = pollux_jobs.read(Path(DATA))
    ours = pollux_figures.mean_jct_s(Path(DATA), apps, "1.0", "workload-6", pollux_figures.POLICIES[policy])
    assert ours == pytest.approx({"tiresias": 3469.69375, "optimus": 5301.875}[policy], abs=0.01)


@with_data
@pytest.mark.deep
def test_pollux_comes_out_within_a_tenth_of_its_own_figure():
    ours = pollux_figures.mean_jct_s(
        Path(DATA), pollux_jobs.read(Path(DATA)), "0.5", "workload-6", pollux_figures.POLICIES["pollux"]
    )
    assert ours == pytest.approx(1287.83, rel=0.1)


@with_data
def test_edf_and_tiresias_meet_as_many_deadlines_as_elasticflow_published():
    rows = list(elasticflow_figures.rows(Path(DATA), elasticflow_figures.TRACES[:1]))
    assert [row.name.split(".")[2] for row in rows] == ["edf", "tiresias"]
    assert all(row.holds for row in rows)
