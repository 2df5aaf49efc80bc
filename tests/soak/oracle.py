"""Judges a soak by what the trainings wrote down themselves: the steps of each process on each GPU.

A step counts as lost if no process did it. Steps may be done twice only where the process before was killed, or its
shim, or what held its state on a GPU until the next process had that; and never more than `most_again` at once: those
since the newest checkpoint on the disk. No job uses a GPU while somebody else holds its lock, and none begins on one
that the coordinator has shown as another one's. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.soak.plan import Arrival

UNDER_WAY_S = 15.0  # a start may be under way when its GPU becomes another one's


def most_again(job: Arrival) -> int:
    """Return how many steps a kill may cost: the newest checkpoint may have been in memory only, or half written."""
    return 2 * job.save_every


@dataclass(frozen=True)
class Other:
    """Somebody else's use of a GPU, in boot time."""

    gpu: str
    since: float  # that the lock is held, or the coordinator has shown it
    until: float
    locked: bool


@dataclass
class Verdict:
    lost: int = 0
    again: int = 0
    violations: list[str] = field(default_factory=list)


@dataclass
class _Run:
    """The steps of one process."""

    pid: int
    began: float  # when it took its GPUs, before it looked for a checkpoint
    stepped: float  # when its first step was done
    ended: float
    steps: list[int]
    gpus: set[str]


def judge(
    uses: Mapping[str, Sequence[Mapping[str, Any]]],
    jobs: Iterable[Arrival],
    killed: Mapping[str, Sequence[float]],
    others: Sequence[Other] = (),
) -> Verdict:
    """`uses`: by job, its steps in order of time (`reshape_hooks.locks.uses`).

    `killed`: by job, the times (boot time) at which its trainer, its shim or what holds its state was killed.
    """
    verdict = Verdict()
    for job in jobs:
        runs = _runs(uses.get(job.name, ()))
        missing = set(range(1, job.steps + 1)) - {step for run in runs for step in run.steps}
        if missing:
            verdict.lost += len(missing)
            verdict.violations.append(f"{job.name} never did the steps {sorted(missing)[:10]} of {job.steps}")
        for before, after in pairwise(runs):
            _compare(job, before, after, killed.get(job.name, ()), verdict)
        for run in runs:
            if run.steps != list(range(run.steps[0], run.steps[0] + len(run.steps))):
                verdict.violations.append(f"{job.name} did not do its steps in order in process {run.pid}")
            verdict.violations += [f"{job.name} {what}" for other in others if (what := _meets(run, other))]
    return verdict


def _meets(run: _Run, other: Other) -> str:
    """Return what a process did on a GPU that was another one's; empty if nothing."""
    if other.gpu not in run.gpus:
        return ""
    if other.locked and run.began < other.until and other.since < run.ended:
        return f"used {other.gpu} in process {run.pid} while another process held its lock"
    if not other.locked and other.since + UNDER_WAY_S < run.began < other.until:
        return f"began on {other.gpu} in process {run.pid} though it was shown as another one's"
    return ""


def _runs(uses: Iterable[Mapping[str, Any]]) -> list[_Run]:
    runs: dict[tuple[int, int], _Run] = {}
    for use in uses:
        key = use["generation"], use["pid"]
        run = runs.setdefault(
            key, _Run(use["pid"], use["boottime_in"], use["boottime_out"], use["boottime_out"], [], set())
        )
        run.gpus.add(use["gpu"])
        run.ended = use["boottime_out"]
        if not run.steps or run.steps[-1] != use["step"]:  # one line per GPU
            run.steps.append(use["step"])
    return sorted(runs.values(), key=lambda run: run.began)


def _compare(job: Arrival, before: _Run, after: _Run, killed: Sequence[float], verdict: Verdict) -> None:
    again = before.steps[-1] + 1 - after.steps[0]
    if again < 0:
        verdict.violations.append(f"{job.name} went on at step {after.steps[0]} after step {before.steps[-1]}")
    if again <= 0:
        return
    verdict.again += again
    excused = any(before.began <= at <= after.stepped for at in killed)  # also as it looked for its checkpoint
    if not excused or again > most_again(job):
        why = "more than since its checkpoint" if excused else "though nobody had killed it"
        verdict.violations.append(f"{job.name} did {again} steps up to {before.steps[-1]} twice, {why}")
