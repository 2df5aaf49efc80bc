"""The demo's trainings are so long that reshaping pays on the machine that was measured, however slow it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshape.demo import case_study
from reshape.demo.baseline_prediction import MeasuredTimes, default, termination
from reshape.demo.lengths import AGAIN, CROWD, LEAST, PAYS, SHORTER, DemoPlan, StartTimes, not_shown, plan, slowed
from reshape.demo.run import DemoRun

SPEEDS = {1: 0.12, 2: 0.12 / 1.7, 4: 0.05}
STOP_S, END_S = 0.3, 0.4  # save and exit; end a launch
IDLE = StartTimes(1.3, 4.3, 1.1, SPEEDS)  # Keras on two idle cores
SECONDS = st.floats(0.1, 60.0)
TRAINERS = st.sampled_from(sorted(LEAST))


def with_sidecars(p: DemoPlan, crowd: float) -> tuple[float, float]:
    """The makespan where all takes what was measured; iterations of job one that are left as job two ends.

    `crowd`: how many times as long job two's imports take beside job one. Where no interpreter waits, which is where a
    reshape takes as long as a start, job two imports only after it has its GPUs, at once with job one.
    """
    start, four_s, two_s = p.start, SPEEDS[4], SPEEDS[2]
    cold = start.restart_s >= start.first_step_s
    early_s, gap_s = (0.0, crowd * start.restart_s) if cold else (crowd * start.first_step_s, start.restart_s)
    on_four_s = p.arrival_s + start.launch_s + early_s
    two_ends = start.launch_s + start.first_step_s + on_four_s + gap_s + p.second_iterations * two_s
    rest = p.first_iterations - on_four_s / four_s - p.second_iterations
    return two_ends + start.restart_s + rest * four_s, rest


def baselines(p: DemoPlan, crowd: float) -> dict[str, float]:
    """The makespans without sidecars. `crowd`: how many times as long as alone two take that start at once."""
    start = p.start
    measured = MeasuredTimes(
        p.first_iterations, p.second_iterations, start.launch_s + start.first_step_s + p.arrival_s, SPEEDS,
        start.launch_s, start.first_step_s, crowd * start.first_step_s, STOP_S, END_S,
    )  # fmt: skip
    return {"default": default(measured), "termination": termination(measured)}


def shorter_by(p: DemoPlan, crowd: float, crowd_of_two: float) -> dict[str, float]:
    """By which share it is shorter than each baseline."""
    ours, _ = with_sidecars(p, crowd)
    return {name: 1.0 - ours / theirs for name, theirs in baselines(p, crowd_of_two).items()}


@given(TRAINERS, SECONDS, SECONDS)
def test_where_no_interpreter_can_wait_both_baselines_are_longer_all_the_same(
    trainer: str, launch_s: float, first_step_s: float
) -> None:
    """By how much is not promised there: what is saved are launches, and that job two trains beside job one."""
    p = plan(trainer, StartTimes(launch_s, first_step_s, STOP_S + first_step_s, SPEEDS))
    assert min(shorter_by(p, CROWD, CROWD).values()) > 0.0


@given(st.floats(3.0, 60.0), st.floats(0.1, 0.35), st.floats(0.1, 0.5), st.floats(1.0, CROWD))
def test_where_interpreters_wait_keras_ends_clearly_sooner_on_any_machine(
    first_step_s: float, warm: float, launch: float, crowd: float
) -> None:
    """`warm`, `launch`: in first steps of this machine, 0.26 and 0.3 on two idle cores."""
    p = plan("keras", StartTimes(launch * first_step_s, first_step_s, warm * first_step_s, SPEEDS))
    assert min(shorter_by(p, crowd, 1.0).values()) > SHORTER


def test_on_an_idle_machine_keras_ends_a_fifth_sooner() -> None:
    assert min(shorter_by(plan("keras", IDLE), CROWD, 1.0).values()) > 0.19


@given(TRAINERS, SECONDS, SECONDS, st.floats(0.1, 1.0))
def test_enough_is_left_of_the_first_job_for_growing_back_to_pay(
    trainer: str, launch_s: float, first_step_s: float, warm: float
) -> None:
    p = plan(trainer, StartTimes(launch_s, first_step_s, warm * first_step_s, SPEEDS))
    _, rest = with_sidecars(p, CROWD)
    assert rest * (SPEEDS[2] - SPEEDS[4]) > 0.99 * PAYS * AGAIN * p.start.restart_s


@given(TRAINERS, SECONDS, SECONDS, st.floats(0.1, 1.0))
def test_it_trains_on_two_gpus_for_longer_than_it_is_left_alone_after_a_reshape(
    trainer: str, launch_s: float, first_step_s: float, warm: float
) -> None:
    p = plan(trainer, StartTimes(launch_s, first_step_s, warm * first_step_s, SPEEDS))
    assert p.second_iterations * SPEEDS[2] > 2.0 * p.start.restart_s


def test_on_an_idle_machine_each_takes_less_than_a_minute() -> None:
    assert plan("keras", IDLE).expected_s < 50.0
    assert plan("numpy", StartTimes(1.3, 0.4, 0.3, SPEEDS)).expected_s < 40.0


def test_a_machine_three_times_slower_gets_longer_trainings() -> None:
    slow = plan("keras", StartTimes(3 * IDLE.launch_s, 3 * IDLE.first_step_s, 3 * IDLE.restart_s, SPEEDS))
    assert slow.second_iterations > 2.0 * plan("keras", IDLE).second_iterations
    assert slow.limit_s > 5 * slow.expected_s


@pytest.mark.parametrize(
    ("launches", "first_steps", "gaps", "ready", "said"),
    [
        ([1.3, 2.4], [4.3, 6.4], [1.3], [8.0], ""),
        ([1.3], [4.3, 10.3], [], [], "a first step took up to 10.3 s and 4.3 s as measured first"),
        ([], [], [], [], ""),
        ([1.3], [4.3], [0.9, 1.6], [], "a reshape took up to 1.6 s and 1.1 s as measured first"),
        ([1.3], [4.3], [0.9], [9.0], "job two was ready after 9.0 s and 8.2 s were expected"),
        ([11.0], [16.0], [], [], "a launch took up to 11.0 s and 1.3 s as measured first and a first step took"),
    ],
)
def test_a_machine_that_became_slower_is_told_with_figures(
    launches: list[float], first_steps: list[float], gaps: list[float], ready: list[float], said: str
) -> None:
    found = slowed(IDLE, launches, first_steps, gaps, ready)
    assert found.startswith(said) and bool(found) == bool(said)


def test_only_a_baseline_that_was_not_beaten_is_told_with_its_figures() -> None:
    found = not_shown(100.0, {"default": 92.0, "termination": 130.0}, "a first step took up to 16.0 s")
    assert found == [
        "a makespan 15% shorter than `default`: 100.0 s here, 92.0 s there: a first step took up to 16.0 s"
    ]
    assert not_shown(78.0, {"default": 92.0}, "") == []


def the_run(first_step_s: float = 4.3, directions: tuple[str, ...] = ("down", "up"), lost: int = 0) -> DemoRun:
    """A run of three steps each."""
    stages = dict.fromkeys(case_study.STAGES, 0.1)
    jobs: dict[str, Any] = {
        n: {"state": "completed", "iterations": 3, "submit_ts": at, "finish_ts": at + 30.0}
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
    result = case_study.summary(plan("keras", IDLE), run, {})
    return result["complaints"], result["not_shown"]


def test_a_reshape_that_is_missing_fails_the_demo_unless_the_machine_became_slower() -> None:
    assert told(the_run()) == ([], [])
    complaints, not_there = told(the_run(directions=("down",)))
    assert complaints == ["job one was reshaped down, not once down and once up"] and not_there == []
    complaints, not_there = told(the_run(directions=("down",), first_step_s=30.0))
    assert complaints == [] and "a first step took up to 30.0 s and 4.3 s as measured first" in not_there[0]


@pytest.mark.parametrize("first_step_s", [4.3, 30.0])
def test_a_lost_step_or_stage_fails_the_demo_however_slow_the_machine_is(first_step_s: float) -> None:
    assert told(the_run(first_step_s, lost=2))[0] == ["a step was lost or done twice"]
    assert told(the_run(first_step_s, lost=3))[0] == ["a step was lost or done twice"]
    run = the_run(first_step_s)
    del run.events[-1]["stages_s"]["checkpoint"]
    assert "the reshape up of job one has no checkpoint" in told(run)[0]
