"""The judge of `make soak` sees each kind of damage, and only damage; the same seed gives the same plan."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.oracle import MOST_AGAIN, judge
from tests.soak.plan import KINDS, plan


def runs(*runs: range) -> dict[str, list[dict[str, Any]]]:
    """The steps of one job, process after process, one step a second, each on two GPUs."""
    uses, at = [], 0.0
    for generation, steps in enumerate(runs, 1):
        for step in steps:
            use = {"generation": generation, "pid": 100 + generation, "step": step}
            uses += [{**use, "boottime_in": at, "boottime_out": at + 1.0} for _ in ("a", "b")]
            at += 1.0
    return {"job": uses}


@pytest.mark.parametrize(
    ("done", "killed", "lost", "again", "said"),
    [
        ([range(1, 51)], [], 0, 0, ""),
        ([range(1, 21), range(21, 51)], [], 0, 0, ""),
        ([range(1, 26), range(21, 51)], [24.5], 0, 5, ""),
        ([range(1, 26), range(21, 51)], [], 0, 5, "though nobody had killed it"),
        ([range(1, 26), range(21, 51)], [40.0], 0, 5, "though nobody had killed it"),
        ([range(1, 40), range(39 - MOST_AGAIN, 51)], [38.5], 0, MOST_AGAIN + 1, "more than since its checkpoint"),
        ([range(1, 21), range(22, 51)], [], 1, 0, "never did the steps [21]"),
        ([range(1, 50)], [], 1, 0, "never did the steps [50]"),
        ([], [], 50, 0, "never did the steps"),
    ],
)
def test_what_is_lost_or_done_twice_is_counted_and_only_kills_excuse_it(
    done: list[range], killed: list[float], lost: int, again: int, said: str
) -> None:
    verdict = judge(runs(*done), {"job": 50}, {"job": killed})
    assert (verdict.lost, verdict.again) == (lost, again)
    assert (said in verdict.violations[0]) if said else verdict.violations == []


def test_a_seed_gives_one_plan_with_every_kind_of_kill_and_enough_of_them() -> None:
    drawn = plan(7, 600.0)
    assert drawn == plan(7, 600.0) != plan(8, 600.0)
    assert {kill.kind for kill in drawn.kills} == set(KINDS) and len(drawn.kills) > 50
    assert drawn.arrivals[-1].at_s < drawn.kills[-1].at_s < 600.0
