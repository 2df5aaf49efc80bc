"""The demo's trainings are so long that reshaping pays on the machine that was measured, however slow it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshape.demo import case_study
from reshape.demo.baseline_prediction import MeasuredTimes, default, termination
from reshape.demo.lengths import CROWD, LEAST, SHORTER, DemoPlan, StartTimes, not_shown, plan, restart_s, slowed
from reshape.demo.run import DemoRun

SPEEDS = {1: 0.12, 2: 0.12 / 1.7, 4: 0.05}
STOP_S = 0.6  # save and exit
IDLE = StartTimes(1.3, 6.0, SPEEDS)  # Keras on two idle cores
SECONDS = st.floats(0.1, 60.0)
TRAINERS = st.sampled_from(sorted(LEAST))


def made(trainer: str, short: bool, launch_s: float, first_step_s: float) -> DemoPlan:
    return plan(trainer, short, StartTimes(launch_s, first_step_s, SPEEDS))


def with_sidecars(p: DemoPlan, again_s: float | None = None) -> tuple[float, float]:
    """The makespan where all takes what was measured, imports beside a training longer; iterations left as two ends.

    `again_s`: until the first step after a reshape, and of job two, which imports while job one trains on; None: both
    start as for the first time, at once.
    """
    start, four_s, two_s = p.start, SPEEDS[4], SPEEDS[2]
    crowded_s = CROWD * start.first_step_s
    early_s, both_s = (0.0, crowded_s) if again_s is None else (crowded_s, again_s)
    on_four_s = p.arrival_s + start.launch_s + early_s
    two_ends = start.launch_s + start.first_step_s + on_four_s + STOP_S + both_s + p.second_iterations * two_s
    rest = p.first_iterations - on_four_s / four_s - p.second_iterations
    again_s = start.first_step_s if again_s is None else again_s
    return two_ends + STOP_S + again_s + rest * four_s, rest


def baselines(p: DemoPlan, crowd: float = 1.0) -> dict[str, float]:
    """The makespans without sidecars. `crowd`: so many times as long take two starts at once."""
    start = p.start
    measured = MeasuredTimes(
        p.first_iterations, p.second_iterations, start.launch_s + start.first_step_s + p.arrival_s, SPEEDS,
        start.launch_s, start.first_step_s, crowd * start.first_step_s, STOP_S, 2.0,
    )  # fmt: skip
    return {"default": default(measured), "termination": termination(measured)}


@given(TRAINERS, SECONDS, SECONDS)
def test_however_long_a_start_takes_reshaping_ends_sooner_than_either_baseline(
    of: tuple[str, bool], launch_s: float, first_step_s: float
) -> None:
    p = made(*of, launch_s, first_step_s)
    ours, _ = with_sidecars(p)
    assert ours < min(baselines(p, CROWD).values())


@given(st.floats(3.0, 60.0), st.floats(0.05, 0.2), st.floats(0.2, 0.5))
def test_where_interpreters_wait_keras_ends_clearly_sooner(first_step_s: float, warm: float, launch: float) -> None:
    """`warm`, `launch`: in first steps of this machine."""
    p = made("keras", False, launch * first_step_s, first_step_s)
    ours, _ = with_sidecars(p, warm * first_step_s)
    assert {n: s for n, s in baselines(p).items() if ours > (1.0 - SHORTER) * s} == {}


@given(TRAINERS, SECONDS, SECONDS)
def test_enough_is_left_of_the_first_job_for_growing_back_to_pay(
    of: tuple[str, bool], launch_s: float, first_step_s: float
) -> None:
    p = made(*of, launch_s, first_step_s)
    _, rest = with_sidecars(p)
    assert rest * (SPEEDS[2] - SPEEDS[4]) > 1.2 * CROWD * restart_s(p.trainer, p.start)


@given(TRAINERS, SECONDS, SECONDS)
def test_it_trains_on_two_gpus_for_longer_than_it_is_left_alone_after_a_reshape(
    of: tuple[str, bool], launch_s: float, first_step_s: float
) -> None:
    p = made(*of, launch_s, first_step_s)
    assert p.second_iterations * SPEEDS[2] > 2.0 * first_step_s


def test_on_an_idle_machine_keras_takes_under_three_minutes_and_numpy_about_one() -> None:
    assert plan("keras", False, IDLE).expected_s < 150.0 - IDLE.launch_s - IDLE.first_step_s
    assert made("numpy", False, 1.3, 0.4).expected_s < 65.0


def test_a_machine_three_times_slower_gets_longer_trainings() -> None:
    slow = made("keras", False, 3 * IDLE.launch_s, 3 * IDLE.first_step_s)
    assert slow.second_iterations > 2.0 * plan("keras", False, IDLE).second_iterations
    assert slow.limit_s > 5 * slow.expected_s


@pytest.mark.parametrize(
    ("launches", "first_steps", "restarts", "said"),
    [
        ([1.3, 2.4], [6.0, 8.5], [4.5], ""),
        ([1.3], [6.0, 10.3], [], "a first step took up to 10.3 s and 6.0 s as measured first"),
        ([], [], [], ""),
        ([1.3], [6.0], [0.9, 6.0], "the first step after a reshape took up to 6.0 s and 3.0 s were expected"),
        ([11.0], [16.0], [], "a launch took up to 11.0 s and 1.3 s as measured first and a first step took"),
    ],
)
def test_a_machine_that_became_slower_is_told_with_figures(
    launches: list[float], first_steps: list[float], restarts: list[float], said: str
) -> None:
    found = slowed("keras", IDLE, launches, first_steps, restarts)
    assert found.startswith(said) and bool(found) == bool(said)


def test_only_a_baseline_that_was_not_beaten_is_told_with_its_figures() -> None:
    found = not_shown(100.0, {"default": 92.0, "termination": 130.0}, "a first step took up to 16.0 s")
    assert found == [
        "a makespan 15% shorter than `default`: 100.0 s here, 92.0 s there: a first step took up to 16.0 s"
    ]
    assert not_shown(78.0, {"default": 92.0}, "") == []


def the_run(first_step_s: float = 6.0, directions: tuple[str, ...] = ("down", "up"), lost: int = 0) -> DemoRun:
    """A run of three steps each."""
    stages = dict.fromkeys(case_study.STAGES, 0.1)
    jobs: dict[str, Any] = {
        n: {"state": "completed", "iterations": 3, "submit_ts": at, "finish_ts": at + 60.0}
        for n, at in (("one", 0.0), ("two", 5.0))
    }
    run = DemoRun("sidecar", jobs=jobs, speeds=SPEEDS, overheads={"k8s_init": 1.3, "k8s_term": 2.0})
    run.steps = {"one": [n for n in (1, 2, 3) if n != lost], "two": [1, 2, 3]}
    pids = {"shim_pid": 1, "sidecar_pid": 2}
    run.events = [{"type": "submitted", "job_id": n, "at": j["submit_ts"]} for n, j in jobs.items()]
    run.events += [
        {"type": "started", "job_id": n, "stages_s": {"launch": 1.3, "first step": first_step_s}, **pids} for n in jobs
    ]
    run.events += [
        {
            "type": "reshaped", "job_id": "one", "direction": d, "from_gpus": 4, "to_gpus": 2, "gap_s": 1.0,
            "for": None, "stages_s": dict(stages), **pids,
        }
        for d in directions
    ]  # fmt: skip
    return run


def told(run: DemoRun) -> tuple[list[str], list[str]]:
    result = case_study.summary(plan("keras", False, IDLE), run, {})
    return result["complaints"], result["not_shown"]


def test_a_reshape_that_is_missing_fails_the_demo_unless_the_machine_became_slower() -> None:
    assert told(the_run()) == ([], [])
    complaints, not_there = told(the_run(directions=("down",)))
    assert complaints == ["job one was reshaped down, not once down and once up"] and not_there == []
    complaints, not_there = told(the_run(directions=("down",), first_step_s=30.0))
    assert complaints == [] and "a first step took up to 30.0 s and 6.0 s as measured first" in not_there[0]


@pytest.mark.parametrize("first_step_s", [6.0, 30.0])
def test_a_lost_step_or_stage_fails_the_demo_however_slow_the_machine_is(first_step_s: float) -> None:
    assert told(the_run(first_step_s, lost=2))[0] == ["a step was lost or done twice"]
    assert told(the_run(first_step_s, lost=3))[0] == ["a step was lost or done twice"]
    run = the_run(first_step_s)
    del run.events[-1]["stages_s"]["checkpoint"]
    assert "the reshape up of job one has no checkpoint" in told(run)[0]
