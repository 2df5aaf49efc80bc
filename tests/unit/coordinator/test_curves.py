"""The curve that a job draws by its heartbeats: one point per evaluation, a bounded number, and where it leads."""

from __future__ import annotations

from itertools import pairwise

import pytest

from adaptive_scheduler.profiles.profiles import Accuracy
from coordinator.model import requirements
from coordinator.model import states as s
from coordinator.model.requirements import Target
from coordinator.telemetry.progress_tracker import MOST_POINTS, Curve
from sidecar.protocol import Heartbeat
from tests.unit.coordinator.situations import job, seen

TOP5 = Target(0.9, top5=True)


def top5(iterations: float) -> float:
    """It is 0.9 after 900 iterations."""
    return 1 - 1 / (1 + 0.01 * iterations)


PROFILE = [Accuracy(k, top5(k), "imported") for k in (20, 50, 100, 200)]


def beat(iterations: int, value: float | None, evaluation: int, name: str = "val_top5") -> Heartbeat:
    found = seen(steps=iterations)
    found.progress.value, found.progress.value_name, found.progress.evaluations = value, name, evaluation
    return found


def drawn(beats: list[Heartbeat], **doc: object) -> Curve:
    curve, record = Curve(), job(s.RUNNING, **doc)
    for one in beats:
        curve.heard(record, one)
    return curve


def test_a_value_that_is_told_again_later_is_no_further_point() -> None:
    curve = drawn([beat(100, 0.5, 1), beat(150, 0.5, 1), beat(200, 0.5, 2)], target_top5=0.9)
    assert curve.points == [(100, 0.5), (200, 0.5)]


def test_of_a_long_curve_few_points_are_kept_evenly_and_the_newest_always() -> None:
    curve = drawn([beat(k, top5(k), k) for k in range(1, 10_001)], target_top5=0.999)
    points = [k for k, _ in curve.points]
    steps = {b - a for a, b in pairwise(points[:-1])}
    assert len(points) <= MOST_POINTS + 1
    assert (len(steps), points[0], points[-1]) == (1, 1, 10_000)


def test_before_its_first_point_other_jobs_of_the_type_say_how_long_a_job_is() -> None:
    assert Curve().needs(TOP5, PROFILE) == pytest.approx(900, rel=0.1)
    assert Curve().needs(TOP5, []) is None


def test_what_others_reached_it_has_still_to_reach_itself() -> None:
    beyond = [*PROFILE, Accuracy(1000, top5(1000), "measured"), Accuracy(2000, 1.0, "measured")]
    assert Curve().needs(TOP5, beyond) == pytest.approx(900, rel=0.1)
    assert drawn([beat(950, 0.91, 1)], target_top5=0.9).needs(TOP5, beyond) == 0


def test_its_own_points_put_right_what_others_showed() -> None:
    slow = [beat(k, top5(k / 3), k) for k in range(100, 2100, 50)]  # 0.9 after 2700
    needs = drawn(slow, target_top5=0.9).needs(TOP5, PROFILE)
    assert needs is not None
    assert abs(needs - 2700) < abs(900 - 2700) / 2


def test_a_top5_curve_tells_nothing_about_another_accuracy() -> None:
    assert Curve().needs(Target(0.9, name="val_accuracy"), PROFILE) is None


def test_a_loss_is_followed_down_to_its_target() -> None:
    falling = [beat(k, 3 / (1 + 0.01 * k) + 0.2, k, "val_loss") for k in range(50, 550, 50)]
    aim = {"value": 0.5, "above": False, "name": "val_loss"}
    target = requirements.target({"target": aim})
    assert target is not None
    assert drawn(falling, target=aim).needs(target, PROFILE) == pytest.approx(900, rel=0.15)


def test_only_what_the_target_names_is_a_point() -> None:
    assert drawn([beat(100, 0.5, 1, "loss")], target_top5=0.9).points == []


@pytest.mark.parametrize(
    ("name", "doc", "learned"),
    [
        ("val_top5", {}, True),
        ("val_top5", {"target": {"value": 0.9}}, True),
        ("value", {"target_top5": 0.9}, True),
        ("value", {}, False),
        ("val_accuracy", {}, False),
        ("val_top5_error", {}, False),
        ("loss", {"target": {"value": 0.1, "above": False}}, False),
    ],
)
def test_only_a_top5_accuracy_is_passed_on_to_other_jobs(name: str, doc: dict[str, object], learned: bool) -> None:
    assert drawn([beat(100, 0.5, 1, name)], **doc).top5 == ([(100, 0.5)] if learned else [])


def test_a_percentage_is_not_passed_on() -> None:
    assert drawn([beat(100, 50.0, 1)]).top5 == []
