"""A newcomer does not put off the end of all work: it waits rather than take GPUs from the job that ends last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_scheduler.decision import Hold, Start
from adaptive_scheduler.models.prediction import all_work_s
from adaptive_scheduler.policies.elastic.algorithms import schedule_incoming
from adaptive_scheduler.settings import Settings
from tests.unit.adaptive_scheduler.test_elastic import cluster, incoming, running, waiting


def test_all_work_counts_waiting_jobs_and_each_on_its_thriftiest_count() -> None:
    alone = cluster(running("r", 2, 100, (2,)), idle=2)
    both = cluster(running("r", 2, 100, (2,)), waiting("w", optional=(2,), iterations_left=300), idle=2)
    assert all_work_s(both) == pytest.approx(4 * all_work_s(alone))
    assert all_work_s(replace(alone, nodes=())) == float("inf")


def test_a_newcomer_waits_rather_than_put_off_the_end_of_all_work() -> None:
    world = cluster(
        running("long", 4, 90_000), running("next", 1, 50, (1,)), waiting(iterations_left=9_000, optional=(1,))
    )
    printed = schedule_incoming(world, world.job["new"], 0.0, Settings(spare_critical=False))
    assert isinstance(printed, Start) and printed.victim == "long"
    held = incoming(world)
    assert isinstance(held, Hold) and "next" in held.explanation.sentence
