"""Simulates what happened once more: under the policy that ran, and under others (`reshape replay`).

Assumed of the past: an ended job has the work that it did (of one without known steps: the seconds that it trained, on
as many GPUs as it held), an open one the work that is expected of it; speeds and overheads are those measured by now;
nodes and settings are those of now; nobody cancels, suspends, drains or asks for GPU counts; jobs resume if they have
shown that they do. So the replay of what ran differs from what came, and stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from adaptive_scheduler.candidates import nodes_for
from adaptive_scheduler.profiles.profiles import speed_up
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from coordinator.forecasts.forecast import Forecast, JobForecast, forecast
from coordinator.forecasts.live_state import LiveState
from coordinator.forecasts.what_if import with_policy
from coordinator.policies import POLICIES
from reshape.what_if.live import LiveSource, profiles_of


class JournalSource(LiveSource, Protocol):
    """The part of `reshape.client.Client` by which the past is read."""

    def journal(self, within_s: int = 0) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Replay:
    """What came, what ran simulated once more, and other policies by name. `gpus`: of the whole fleet."""

    came: Forecast
    ran: Forecast
    others: Mapping[str, Forecast]
    gpus: int
    left_out: tuple[str, ...]  # jobs on CPU, and those that ended before they started

    def fleet_s(self, found: Forecast) -> float | None:
        """GPU-seconds of the whole fleet, used or idle, while there was work; None if that has no end."""
        return None if found.busy_s is None else found.busy_s * self.gpus

    def regret_s(self, name: str) -> float | None:
        """GPU-seconds of the fleet that the other policy would have saved; below 0 it would have cost more."""
        ran, other = self.fleet_s(self.ran), self.fleet_s(self.others[name])
        return None if ran is None or other is None else ran - other


def replay(source: JournalSource, policies: Iterable[str] = (), within_s: int = 0) -> Replay:
    """`policies`: those of `reshape up`; none: all but the one that ran. `Rejected` for an unknown one."""
    view = source.journal(within_s)
    live = LiveState.read(view, profiles_of(source))
    world = live.snapshot
    jobs = tuple(_with_work(world, job, view["came"][job.id]) for job in world.jobs)
    live = replace(live, snapshot=replace(world, jobs=jobs))
    others = {name: with_policy(live, name) for name in policies or POLICIES}
    return Replay(
        came=_came(world.jobs, view["came"]),
        ran=forecast(live),
        others={name: forecast(other) for name, other in others.items() if policies or other != live},
        gpus=sum(node.healthy for node in world.nodes),
        left_out=live.left_out,
    )


def _came(jobs: Iterable[Job], came: Mapping[str, Mapping[str, Any]]) -> Forecast:
    """What really happened, in the form of a forecast."""
    found = tuple(
        JobForecast(job.id, came[job.id]["start_s"], came[job.id]["end_s"], job.submit_s, job.sla_s, guess=False)
        for job in jobs
    )
    return Forecast(found, math.fsum(came[job.id]["gpu_s"] for job in jobs))


def _with_work(world: ClusterSnapshot, job: Job, came: Mapping[str, Any]) -> Job:
    """The job with the work that it did, where its steps are not known: by the time that it trained."""
    if job.iterations_left is not None or came["end_s"] is None or not came["trained_s"]:
        return job
    count = min(job.optional, key=lambda n: abs(n - came["gpu_s"] / came["trained_s"]))
    return replace(job, iterations_left=came["trained_s"] / _seconds(world, job, count))


def _seconds(world: ClusterSnapshot, job: Job, count: int) -> float:
    """Seconds per iteration; of a type without any speed a second on one GPU, as `forecast` assumes it."""
    for node in nodes_for(world, job):
        if found := world.profiles.speed(job.type, node.gpu_type, count):
            return found.seconds
    return 1.0 / speed_up(count)
