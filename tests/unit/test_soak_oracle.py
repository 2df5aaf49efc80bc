"""The judge of `make soak` sees each kind of damage, and only damage; the same seed gives the same plan."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.oracle import UNDER_WAY_S, Other, judge, most_again
from tests.soak.plan import JUMPS_S, KILLS, OTHERS, SLOW_EVERY, Arrival, plan

JOB = Arrival(0.0, "job", [1, 2], 50)
MOST_AGAIN = most_again(JOB)


def runs(*runs: range) -> dict[str, list[dict[str, Any]]]:
    """The steps of one job, process after process, one step a second, each on two GPUs."""
    uses, at = [], 0.0
    for generation, steps in enumerate(runs, 1):
        for step in steps:
            use = {"generation": generation, "pid": 100 + generation, "step": step}
            uses += [{**use, "gpu": gpu, "boottime_in": at, "boottime_out": at + 1.0} for gpu in ("a", "b")]
            at += 1.0
    return {"job": uses}


@pytest.mark.parametrize(
    ("done", "killed", "lost", "again", "said"),
    [
        ([range(1, 51)], [], 0, 0, ""),
        ([range(1, 21), range(21, 51)], [], 0, 0, ""),
        ([range(1, 26), range(21, 51)], [24.5], 0, 5, ""),
        ([range(1, 26), range(21, 51)], [25.5], 0, 5, ""),  # what held its state, before the next process had that
        ([range(1, 26), range(21, 51)], [26.5], 0, 5, "though nobody had killed it"),
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
    verdict = judge(runs(*done), [JOB], {"job": killed})
    assert (verdict.lost, verdict.again) == (lost, again)
    assert (said in verdict.violations[0]) if said else verdict.violations == []


def test_a_kill_may_cost_more_steps_of_a_job_that_saves_more_rarely() -> None:
    rarely = Arrival(0.0, "job", [1, 2], 100, save_every=SLOW_EVERY)
    done = runs(range(1, 60), range(11, 101))
    assert judge(done, [rarely], {"job": [58.5]}).violations == []
    assert judge(done, [Arrival(0.0, "job", [1, 2], 100)], {"job": [58.5]}).violations


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Other("a", 10.0, 12.0, locked=True), "while another process held its lock"),
        (Other("a", 20.0, 30.0, locked=True), "while another process held its lock"),
        (Other("a", 50.0, 60.0, locked=True), ""),
        (Other("c", 10.0, 60.0, locked=True), ""),
        (Other("a", 19.0 - UNDER_WAY_S, 60.0, locked=False), "though it was shown as another one's"),
        (Other("a", 21.0 - UNDER_WAY_S, 60.0, locked=False), ""),
        (Other("a", 19.0 - UNDER_WAY_S, 19.5, locked=False), ""),
        (Other("c", 19.0 - UNDER_WAY_S, 60.0, locked=False), ""),
    ],
)
def test_a_job_that_uses_a_gpu_of_somebody_else_is_a_violation(other: Other, said: str) -> None:
    """It trains in one process from 0 to 20 s and in another from 20 to 50 s."""
    verdict = judge(runs(range(1, 21), range(21, 51)), [JOB], {}, [other])
    assert any(said in found for found in verdict.violations) if said else verdict.violations == []


def test_a_seed_gives_one_plan_with_every_kind_of_fault_and_enough_of_them() -> None:
    drawn = plan(7, 600.0)
    assert drawn == plan(7, 600.0) != plan(8, 600.0)
    assert {kill.kind for kill in drawn.kills} == set(KILLS) and len(drawn.kills) > 50
    assert drawn.arrivals[-1].at_s < drawn.kills[-1].at_s < 600.0


@pytest.mark.parametrize("seed", range(20))
def test_each_kind_of_fault_comes_once_before_one_comes_again(seed: int) -> None:
    drawn = plan(seed, 600.0)
    kinds = [fault.kind for fault in drawn.others[: len(OTHERS)]]
    assert sorted(kinds) == sorted(OTHERS)
    assert sum(job.save_s > 0 for job in drawn.arrivals) and sum(job.evaluation_s > 0 for job in drawn.arrivals)
    jumps = {JUMPS_S[int(fault.choice * len(JUMPS_S))] for fault in drawn.others if fault.kind == "clock"}
    assert len(jumps) > 1


@pytest.mark.parametrize("seed", range(20))
def test_each_plan_begins_with_a_start_that_only_several_victims_make_possible(seed: int) -> None:
    first, second, newcomer, *others = plan(seed, 300.0).arrivals
    assert first.counts == second.counts == [1, 2], "they fill the machine"
    assert newcomer.counts == [2], "neither can make room for it alone"
    assert newcomer.at_s < min(fault.at_s for fault in plan(seed, 300.0).others) + 1.0
    assert all(other.at_s > newcomer.at_s + 20.0 for other in others)
