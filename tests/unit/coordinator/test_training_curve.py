"""How a training went is kept: a few points of any length of it, over its end and over the coordinator's."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.telemetry.training_curve import FIRST_POINTS, MOST_COUNTS, SHOWN_POINTS, KeptCurve, TrainingCurve
from sidecar.protocol import Heartbeat
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.unit.coordinator.situations import job, seen


def beat(iterations: int, value: float | None = None, speed: float | None = 0.5) -> Heartbeat:
    found = seen(steps=iterations)
    found.progress.seconds_per_iteration = speed
    if value is not None:
        found.progress.value, found.progress.value_name, found.progress.evaluations = value, "loss", iterations
    return found


def trained(curve: TrainingCurve, first: int, last: int, gpus: int = 2) -> TrainingCurve:
    record = job(s.RUNNING, gpu_ids=[f"gpu-{n}" for n in range(gpus)])
    for k in range(first, last):
        curve.heard(record, beat(k, 1.0 / k), True)
    return curve


def test_of_a_long_training_few_points_are_kept_evenly_and_the_newest() -> None:
    shown = trained(TrainingCurve(), 1, 20_001).kept.shown("one")
    for line in (shown["values"], shown["speeds"]):
        steps = {b[0] - a[0] for a, b in pairwise(line[:-1])}
        assert len(line) <= SHOWN_POINTS + 1
        assert (len(steps), line[0][0], line[-1][0]) == (1, 1, 20_000)


def test_it_is_stored_as_often_as_it_doubles_however_many_heartbeats_there_are() -> None:
    curve, writes = TrainingCurve(), 0
    for k in range(1, 20_000):
        trained(curve, k, k + 1)
        if curve.is_due:
            writes += 1
            curve.stored()
    assert writes == 7
    assert 2 ** (writes - 1) * FIRST_POINTS < 20_000


def test_a_speed_that_is_told_without_a_value_is_kept_as_well() -> None:
    curve = TrainingCurve()
    record = job(s.RUNNING, gpu_ids=["a"])
    for k in (10, 20, 30):
        curve.heard(record, beat(k), True)
    shown = curve.kept.shown("one")
    assert shown["values"] == []
    assert shown["speeds"] == [[10, 0.5], [20, 0.5], [30, 0.5]]


def test_a_count_of_gpus_is_noted_where_its_first_step_is_seen() -> None:
    curve = trained(trained(TrainingCurve(), 1, 50, gpus=4), 50, 90, gpus=2)
    curve.heard(job(s.ADJUSTING, gpu_ids=["a"]), beat(95), False)
    assert curve.kept.gpus == [(0, 4), (50, 2)]


def test_of_many_changes_the_shortest_are_given_up() -> None:
    curve = TrainingCurve()
    for n in range(2 * MOST_COUNTS):
        trained(curve, 100 * n + 1, 100 * n + 2, gpus=1 + n % 2)
    assert len(curve.kept.gpus) <= MOST_COUNTS
    assert curve.kept.gpus[0] == (0, 1)


def test_a_curve_goes_on_where_another_coordinator_left_it() -> None:
    whole = trained(TrainingCurve(), 1, 2_001)
    first = trained(TrainingCurve(), 1, 1_001)
    doc = {"curve": first.stored()}
    assert trained(TrainingCurve(KeptCurve.from_row(doc)), 1_001, 2_001).kept == whole.kept


@pytest.mark.parametrize(
    "written",
    [None, 3, [], {"values": 1}, {"gpus": [[1]]}, {"values": {"points": [["a", 1]]}}, {"values": {"every": "x"}}],
)
def test_a_curve_that_somebody_has_changed_into_something_else_counts_as_none(written: Any) -> None:
    assert KeptCurve.from_row({"curve": written}) == KeptCurve()


def test_the_curve_of_a_running_job_outlasts_the_coordinator_that_leaves() -> None:
    world = World.training([4], Behaviour(iterations=10_000, value=2.0, value_name="loss"))
    world.pass_time(60.0)
    before = world.api.jobs.curve("one")
    assert len(before["values"]) > 3
    world.c.stop()
    world.boot()
    world.pass_time(10.0)
    after = world.api.jobs.curve("one")
    assert after["values"][0] == before["values"][0]
    assert after["values"][1][0] < before["values"][-1][0] < after["values"][-1][0]


def test_a_job_with_the_name_of_an_ended_one_has_a_curve_of_its_own() -> None:
    training = Behaviour(iterations=40, value=2.0, value_name="loss")
    world = World.training([4], training)
    world.run(lambda w: bool((w.users.get("jobs", "one") or {}).get("closed")))
    assert world.api.jobs.curve("one")["values"][-1][0] >= 20
    training.iterations = 4_000
    world.api.submissions.rerun("one")
    world.run(lambda w: w.states().get("one") == s.RUNNING)
    assert [k for k, _ in world.api.jobs.curve("one")["values"] if 0 < k < 40] == [], "points of the job before it"


def test_what_is_written_is_what_a_store_returns() -> None:
    field = trained(TrainingCurve(), 1, 20).field
    assert json.loads(json.dumps(field)) == field
