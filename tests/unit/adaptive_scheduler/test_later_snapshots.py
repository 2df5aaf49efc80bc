"""Decisions on a snapshot that takes over what an earlier one has found are those on one that knows nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from adaptive_scheduler.engine import decide
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from tests.unit.adaptive_scheduler.any_world import NOW, drawn
from tests.unit.adaptive_scheduler.worlds import cluster, running, waiting

CHANGES = (
    {"target_reached": True}, {"wanted": 1}, {"wanted": None}, {"state": "submitted", "num_gpus": 0, "node": None},
    {"expected_s": 1.0, "task_s": 1e6}, {"expected_s": None}, {"leased": True}, {"leased": False}, {"sla_s": 60.0},
)  # fmt: skip


def changed(rng: random.Random, jobs: list[Job], all_jobs: tuple[Job, ...]) -> list[Job]:
    """Some jobs otherwise, gone, back, or in another order."""
    for i in rng.sample(range(len(jobs)), min(len(jobs), rng.randrange(3))):
        jobs[i] = replace(jobs[i], **rng.choice(CHANGES))
    jobs = [job for job in jobs if rng.random() < 0.9]
    there = {job.id for job in jobs}
    jobs += [job for job in all_jobs if job.id not in there and rng.random() < 0.3]
    return rng.sample(jobs, len(jobs)) if rng.random() < 0.2 else jobs


@pytest.mark.parametrize("seed", range(12))
def test_through_any_history_the_decisions_are_those_on_a_snapshot_made_from_nothing(seed: int) -> None:
    rng, (first, settings) = random.Random(seed), drawn(seed)
    later, nodes = first, first.nodes
    for _ in range(12):
        nodes = tuple(replace(n, heard=rng.random() < 0.9) for n in nodes) if rng.random() < 0.3 else nodes
        later = later.then(nodes=nodes, jobs=tuple(changed(rng, list(later.jobs), first.jobs)))
        fresh = ClusterSnapshot(later.nodes, later.jobs, later.profiles, later.observations)
        assert decide(later, NOW, settings) == decide(fresh, NOW, settings)
        assert (later.queue, later.placed, later.on_cpu) == (fresh.queue, fresh.placed, fresh.on_cpu)


def test_only_jobs_that_have_changed_are_tested_again() -> None:
    tested = list[str]()

    def waits(job: Job) -> bool:
        tested.append(job.id)
        return job.state == "submitted"

    one, two, three = running("one", 1), running("two", 1), waiting("three")
    before = cluster(one, two, three)
    assert before.where(waits) == (three,)
    tested.clear()
    changed_two = waiting("two")
    assert before.then(jobs=(one, changed_two, three)).where(waits) == (changed_two, three)
    assert before.then(jobs=(three, one)).where(waits) == (three,)
    assert before.where(waits) == (three,)
    assert tested == ["two"]
