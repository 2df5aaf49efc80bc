"""Chooses the lengths of the demo's trainings, so that reshaping gains more than starts cost on this machine.

Pure; called by `case_study.py` with the measured start and restart of the same trainer. With `c` for a start (launch
and first step), `w` for a restart beside an interpreter that waits, and `x` for what job two's iterations take on four
GPUs, a queue loses `x + c - 2w` to us: job two trains beside job one, and two restarts are the price. Terminating
loses two launches, two cold first steps and what ending a launch takes, less `2w`, whatever the lengths are: every
second that all three train makes that a smaller share. So job two is `c + w` long on four GPUs, and the rest of job
one just so long that growing back pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

CROWD = 1.6  # imports beside a training and its waiting interpreter's on two cores take so many times as long as alone
PAYS = 2.0  # growing back must gain so many times what it costs (`Settings.min_gain_factor`, and the cost itself)
AGAIN = 1.3  # a start or reshape that takes so many times what was measured first is slower than that
SHORTER = 0.15  # than either baseline, at least
EPOCH = {"keras": 47, "numpy": 1}  # iterations that a trainer can only be told together
MOMENT_S = 1.0  # smaller differences do not count as slow


@dataclass(frozen=True)
class StartTimes:
    """Times of one real start: launch and from there to the first step, seconds; seconds per iteration by GPUs.

    `restart_s`: how long a training stands still that is reshaped alone on this machine. `cold`: the stages of one
    reshape without an interpreter that waits, and `gap` for all of it, seconds.
    """

    launch_s: float
    first_step_s: float
    restart_s: float
    speeds: Mapping[int, float]
    cold: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MinimumLengths:
    """Least iterations that a demo needs, and seconds that job one trains before job two is submitted."""

    second: int
    rest: int  # of job one, once job two has ended
    arrival_s: float


LEAST = {
    "numpy": MinimumLengths(130, 206, 3.0),
    "keras": MinimumLengths(94, 94, 1.0),
}


@dataclass(frozen=True)
class DemoPlan:
    """The two jobs (SideCar scheduling, Table I, scaled down): lengths in iterations, times in seconds."""

    trainer: str
    first_iterations: int
    second_iterations: int
    arrival_s: float  # of job two, after job one's first step
    expected_s: float  # the makespan, if this machine stays as it was measured
    start: StartTimes

    @property
    def job_type(self) -> str:
        return f"digits-{self.trainer}"

    @property
    def limit_s(self) -> float:
        """Return the seconds after which a run counts as hung."""
        return 600.0 + 10.0 * self.expected_s


def plan(trainer: str, start: StartTimes) -> DemoPlan:
    """Return lengths for a machine that starts trainings as fast as `start`."""
    least, four_s, two_s, again_s = LEAST[trainer], start.speeds[4], start.speeds[2], AGAIN * start.restart_s
    start_s = start.launch_s + start.first_step_s
    second = _whole(trainer, max(least.second, (start_s + again_s) / four_s), round)
    rest = max(least.rest, PAYS * again_s / (two_s - four_s))
    first = _whole(trainer, (least.arrival_s + newcomer_s(start)) / four_s + second + rest, math.ceil)
    expected_s = start_s + 2.0 * again_s + first * four_s + second * (two_s - four_s)
    return DemoPlan(trainer, first, second, least.arrival_s, expected_s, start)


def newcomer_s(start: StartTimes) -> float:
    """Return how long job two takes at most to be launched and to do its imports, while job one trains alone."""
    return start.launch_s + CROWD * start.first_step_s


def _whole(trainer: str, iterations: float, rounded: Callable[[float], int]) -> int:
    return EPOCH[trainer] * rounded(iterations / EPOCH[trainer])


def slowed(
    start: StartTimes,
    launches_s: Iterable[float],
    first_steps_s: Iterable[float],
    gaps_s: Iterable[float],
    newcomers_s: Iterable[float],
) -> str:
    """Describe starts and reshapes of the demo that were slower than those counted with; empty if none was.

    Slowness because two trainings start at once counts, too: the real cost of a start decides if a reshape pays. Of a
    reshape every moment counts, as the rest of job one is only so long that growing back just pays.
    """
    found = []
    for what, seconds, expected, counted in (
        ("a launch", launches_s, start.launch_s, AGAIN * start.launch_s + MOMENT_S),
        ("a first step", first_steps_s, start.first_step_s, AGAIN * start.first_step_s + MOMENT_S),
        ("a reshape", gaps_s, start.restart_s, AGAIN * start.restart_s),
    ):
        longest = max(seconds, default=0.0)
        if longest > counted:
            found.append(f"{what} took up to {longest:.1f} s and {expected:.1f} s as measured first")
    if (longest := max(newcomers_s, default=0.0)) > newcomer_s(start):
        found.append(f"job two was ready after {longest:.1f} s and {newcomer_s(start):.1f} s were expected")
    return " and ".join(found)


def not_shown(makespan_s: float, baselines: Mapping[str, float], slower: str) -> list[str]:
    """Return a sentence with the figures for each baseline (name -> makespan, seconds) that was not beaten clearly."""
    why = f": {slower}" if slower else ", by what starts and launches here vary"
    return [
        f"a makespan {SHORTER:.0%} shorter than `{name}`: {makespan_s:.1f} s here, {seconds:.1f} s there{why}"
        for name, seconds in baselines.items()
        if makespan_s > (1.0 - SHORTER) * seconds
    ]
