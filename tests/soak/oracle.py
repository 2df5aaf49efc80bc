"""Judges a soak by what the trainings wrote down themselves: the steps of each process on each GPU.

A step counts as lost if no process did it. Steps may be done twice only where the process before was killed, or its
shim, and never more than `MOST_AGAIN` at once: those since the newest checkpoint on the disk. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.soak.plan import SAVE_EVERY

MOST_AGAIN = 2 * SAVE_EVERY  # the newest checkpoint may have been in memory only, or half written


@dataclass
class Verdict:
    lost: int = 0
    again: int = 0
    violations: list[str] = field(default_factory=list)


@dataclass
class _Run:
    """The steps of one process."""

    pid: int
    began: float
    ended: float
    steps: list[int]


def judge(
    uses: Mapping[str, Sequence[Mapping[str, Any]]], lengths: Mapping[str, int], killed: Mapping[str, Sequence[float]]
) -> Verdict:
    """`uses`: by job, its steps in order of time (`reshape_hooks.locks.uses`); `lengths`: by job, the steps it has.

    `killed`: by job, the times (boot time) at which its trainer or its shim was killed.
    """
    verdict = Verdict()
    for job, length in lengths.items():
        runs = _runs(uses.get(job, ()))
        missing = set(range(1, length + 1)) - {step for run in runs for step in run.steps}
        if missing:
            verdict.lost += len(missing)
            verdict.violations.append(f"{job} never did the steps {sorted(missing)[:10]} of {length}")
        for before, after in pairwise(runs):
            _compare(job, before, after, killed.get(job, ()), verdict)
        for run in runs:
            if run.steps != list(range(run.steps[0], run.steps[0] + len(run.steps))):
                verdict.violations.append(f"{job} did not do its steps in order in process {run.pid}")
    return verdict


def _runs(uses: Iterable[Mapping[str, Any]]) -> list[_Run]:
    runs: dict[tuple[int, int], _Run] = {}
    for use in uses:
        key = use["generation"], use["pid"]
        run = runs.setdefault(key, _Run(use["pid"], use["boottime_in"], use["boottime_out"], []))
        run.ended = use["boottime_out"]
        if not run.steps or run.steps[-1] != use["step"]:  # one line per GPU
            run.steps.append(use["step"])
    return sorted(runs.values(), key=lambda run: run.began)


def _compare(job: str, before: _Run, after: _Run, killed: Sequence[float], verdict: Verdict) -> None:
    again = before.steps[-1] + 1 - after.steps[0]
    if again < 0:
        verdict.violations.append(f"{job} went on at step {after.steps[0]} after step {before.steps[-1]}")
    if again <= 0:
        return
    verdict.again += again
    excused = any(before.began <= at <= after.began for at in killed)
    if not excused or again > MOST_AGAIN:
        why = "more than since its checkpoint" if excused else "though nobody had killed it"
        verdict.violations.append(f"{job} did {again} steps up to {before.steps[-1]} twice, {why}")
