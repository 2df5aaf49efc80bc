"""Chooses the lengths of the demo's trainings, so that reshaping gains more than starts cost on this machine.

Pure; called by `case_study.py` with the measured start of the same trainer. A reshape stops and starts a training, so
slow starts need longer trainings: job two's length decides whether sharing beats running one after the other, and the
rest of job one then decides whether growing back pays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CROWD = 1.8  # imports beside a training on two cores take so many times as long as alone
PAYS = 2.0  # growing back must gain so many times what it costs (`Settings.min_gain_factor`, and the cost itself)
WARM = 0.5  # an interpreter that waits starts the training again within this share of a first step
AGAIN = 1.3  # a start that takes so many times what was measured first is slower than that
COLD_S = {"keras": 9.0, "numpy": 1.5}  # a first step later than this may be that of a machine that reads all from disk
SHORTER = 0.15  # than either baseline, at least
QUEUED, QUEUED_S = 2.0, 3.0  # job two is worth so many first steps and seconds to the queue: both baselines lose alike
# Before job two comes, an interpreter is to wait beside job one: `SETTLE_S` of `sidecar/warm.py`, and its imports.
SETTLE_S = 3.0
EPOCH = {"keras": 47, "numpy": 1}  # iterations that a trainer can only be told together
MOMENT_S = 1.0  # smaller differences do not count as slow


@dataclass(frozen=True)
class StartTimes:
    """Times of one real start: launch and from there to the first step, seconds; seconds per iteration by GPUs.

    `cold`: the stages of one reshape without an interpreter that waits, and `gap` for all of it, seconds.
    """

    launch_s: float
    first_step_s: float
    speeds: Mapping[int, float]
    cold: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MinimumLengths:
    """Least iterations that a demo needs, and seconds that job one trains before job two is submitted."""

    second: int
    rest: int  # of job one, once job two has ended
    arrival_s: float


LEAST = {
    ("numpy", False): MinimumLengths(400, 280, 5.0),
    ("numpy", True): MinimumLengths(130, 206, 3.0),
    ("keras", False): MinimumLengths(200, 200, 2.0),
    ("keras", True): MinimumLengths(200, 200, 2.0),
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


def plan(trainer: str, short: bool, start: StartTimes) -> DemoPlan:
    """Return lengths for a machine that starts trainings as fast as `start`."""
    least, four_s, two_s = LEAST[trainer, short], start.speeds[4], start.speeds[2]
    arrival_s = least.arrival_s
    if trainer == "keras":  # its imports are what takes long
        arrival_s = max(arrival_s, SETTLE_S + start.first_step_s + start.launch_s)
    # Of each iteration of job two the queue would wait `four_s`. Longer, and what terminating costs counts for less.
    second = max(least.second, math.ceil((QUEUED * start.first_step_s + QUEUED_S) / four_s))
    rest = max(least.rest, math.ceil(PAYS * AGAIN * restart_s(trainer, start) / (two_s - four_s)))
    # Job one trains alone until job two is launched, which may take twice as long, and has done its imports.
    alone = math.ceil((arrival_s + 2.0 * start.launch_s + CROWD * start.first_step_s) / four_s)
    first, second = (EPOCH[trainer] * math.ceil(n / EPOCH[trainer]) for n in (alone + second + rest, second))
    starts_s = 2.0 * start.launch_s + (1.0 + CROWD) * start.first_step_s
    return DemoPlan(trainer, first, second, arrival_s, starts_s + arrival_s + second * two_s + rest * four_s, start)


def restart_s(trainer: str, start: StartTimes) -> float:
    """Return the seconds until a reshape's first step that the lengths count with, at most."""
    return start.first_step_s * (WARM if trainer == "keras" else 1.0)


def slowed(
    trainer: str,
    start: StartTimes,
    launches_s: Iterable[float],
    first_steps_s: Iterable[float],
    restarts_s: Iterable[float],
) -> str:
    """Describe starts and restarts of the demo that were slower than those counted with; empty if none was.

    Slowness because two trainings start at once counts, too: the real cost of a start decides if a reshape pays.
    """
    found = []
    for what, seconds, expected, origin in (
        ("a launch", launches_s, start.launch_s, "as measured first"),
        ("a first step", first_steps_s, start.first_step_s, "as measured first"),
        ("the first step after a reshape", restarts_s, restart_s(trainer, start), "were expected"),
    ):
        longest = max(seconds, default=0.0)
        if longest > AGAIN * expected + MOMENT_S:
            found.append(f"{what} took up to {longest:.1f} s and {expected:.1f} s {origin}")
    return " and ".join(found)


def not_shown(makespan_s: float, baselines: Mapping[str, float], slower: str) -> list[str]:
    """Return a sentence with the figures for each baseline (name -> makespan, seconds) that was not beaten clearly."""
    why = f": {slower}" if slower else ", by what starts and launches here vary"
    return [
        f"a makespan {SHORTER:.0%} shorter than `{name}`: {makespan_s:.1f} s here, {seconds:.1f} s there{why}"
        for name, seconds in baselines.items()
        if makespan_s > (1.0 - SHORTER) * seconds
    ]
