"""Promise: the random workloads have the jobs of the fitted ones, with the work and losses that the zoo really had."""

from __future__ import annotations

import statistics

import pytest

from adaptive_scheduler.decision import Limit, Move
from reshape_papers.workloads import NAMES, build, flowcon_workloads, recorded_trainings, specon_workloads
from simulator.cluster import SimulatedCluster

RANDOM = [name for name in NAMES if "-random-" in name]


@pytest.mark.parametrize("container", [*specon_workloads.ANY, *flowcon_workloads.ANY], ids=lambda one: one.name)
def test_every_model_that_is_drawn_was_recorded_and_learned(container):
    row = recorded_trainings.recording_of(container.name)
    assert row["loss"][-1] < 0.9 * row["loss"][0] or row["model"] == "vae"
    assert row["cpu_s"] > 1 and row["machine"] and row["date"]


@pytest.mark.parametrize("name", RANDOM)
def test_random_and_fitted_workloads_differ_in_work_and_losses_only(name):
    ours, fitted = build(name, 3), build(name.replace("random", "fitted"), 3)
    assert (ours.name, fitted.name) == (name, name.replace("random", "fitted"))
    assert [(j.id, j.type, j.arrival_s, j.node) for j in ours.jobs] == [
        (j.id, j.type, j.arrival_s, j.node) for j in fitted.jobs
    ]
    assert [c.name for c in ours.policy_setups] == [c.name for c in fitted.policy_setups]
    for job in ours.jobs:
        row = recorded_trainings.recording_of(job.cpu.kind)
        assert job.cpu.curve(0.0) == row["loss"][0] and job.cpu.curve(1.0) == row["loss"][-1]
        assert job.iterations * recorded_trainings.STEP == pytest.approx(job.cpu.core_s)


@pytest.mark.parametrize("system", [specon_workloads, flowcon_workloads])
def test_all_works_are_stretched_by_the_factor_that_gives_the_models_the_mean_of_the_fitted_ones(system):
    names = [name for name in RANDOM if name in system.NAMES]
    works = {job.cpu.kind: job.cpu.core_s for name in names for seed in range(9) for job in build(name, seed).jobs}
    assert set(works) == {one.name for one in system.ANY}
    lost = build(names[0], 0).contention  # for which works are shorter, so that the paper's times still come out
    shorter = specon_workloads.vae_core_s(lost) / specon_workloads.vae_core_s(0.0)
    mean = statistics.fmean(one.core_s for one in system.ANY)
    assert statistics.fmean(works.values()) == pytest.approx(shorter * mean)
    factors = {kind: work / recorded_trainings.recording_of(kind)["cpu_s"] for kind, work in works.items()}
    assert max(factors.values()) == pytest.approx(min(factors.values()))


def test_between_two_recorded_losses_the_loss_is_on_a_line():
    curve = recorded_trainings.between([4.0, 2.0, 1.0])
    assert [curve(x) for x in (0.0, 1 / 6, 1 / 3, 0.5, 1.0)] == pytest.approx([4.0, 4.0, 3.0, 2.0, 1.0])


@pytest.mark.parametrize(("name", "policy", "kind"), [
    ("specon-random-20", "specon", Move), ("flowcon-random-5", "flowcon", Limit)
])  # fmt: skip
def test_trainings_that_were_recorded_are_moved_and_limited(name, policy, kind):
    workload = build(name, 1)
    ended = SimulatedCluster(workload, next(c for c in workload.policy_setups if c.name == policy)).run()
    assert any(isinstance(decision, kind) for _, decision in ended.decisions)
    assert len(ended.jobs) == len(workload.jobs)
