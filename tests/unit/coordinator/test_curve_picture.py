"""The picture of a training: lines within their panels, round numbers, its GPUs as bands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from coordinator.dashboard.curve_picture import LEFT, RIGHT, CurvePicture, curve_picture, round_steps


def drawn(values: list[Any], speeds: Sequence[Any] = (), gpus: Sequence[Any] = ()) -> CurvePicture:
    found = curve_picture({"value_name": "loss", "values": values, "speeds": speeds, "gpus": gpus})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("low", "high", "about", "steps"),
    [
        (0, 100, 5, [0, 20, 40, 60, 80, 100]),
        (0.37, 2.3, 4, [0.5, 1.0, 1.5, 2.0]),
        (1_000, 1_000, 4, [1_000]),
        (-1, 1, 4, [-1, -0.5, 0, 0.5, 1]),
        (0, 9_999, 4, [0, 2_500, 5_000, 7_500]),
    ],
)
def test_ticks_are_round_numbers_within_what_is_drawn(low: float, high: float, about: int, steps: list[float]) -> None:
    assert round_steps(low, high, about) == pytest.approx(steps)


def test_a_line_stays_in_its_panel_and_reaches_its_ends() -> None:
    picture = drawn([[10, 2.0], [20, 1.0], [30, 4.0]], [[10, 0.5], [30, 0.25]])
    assert [panel.name for panel in picture.panels] == ["loss", "iterations/s"]
    for panel in picture.panels:
        points = [tuple(map(float, point.split(","))) for point in panel.line.split()]
        assert points[0][0] == pytest.approx(LEFT)
        assert points[-1][0] == pytest.approx(RIGHT)
        assert all(panel.top - 0.1 <= y <= panel.bottom + 0.1 for _, y in points)
    assert picture.panels[0].bottom < picture.panels[1].top


def test_its_gpus_are_bands_that_meet_where_it_was_reshaped() -> None:
    picture = drawn([[0, 2.0], [100, 1.0]], gpus=[[0, 4], [50, 2], [75, 4]])
    assert [band.gpus for band in picture.bands] == [4, 2, 4]
    assert [band.title for band in picture.bands][1] == "2 GPUs from iteration 50 to 75"
    for before, after in pairwise(picture.bands):
        assert before.x + before.width == pytest.approx(after.x)
        assert before.shade != after.shade
    assert [words for _, words in picture.reshapes] == [
        "from 4 to 2 GPUs after 50 iterations",
        "from 2 to 4 GPUs after 75 iterations",
    ]


def test_a_flat_line_and_one_without_gpus_can_be_drawn() -> None:
    assert drawn([[0, 0.0], [10, 0.0]]).bands == []
    assert drawn([[0, 3.0], [10, 3.0]]).panels[0].ticks


@pytest.mark.parametrize("values", [[], [[5, 1.0]]])
def test_less_than_two_points_are_no_picture(values: list[Any]) -> None:
    assert curve_picture({"value_name": None, "values": values, "speeds": [], "gpus": []}) is None
