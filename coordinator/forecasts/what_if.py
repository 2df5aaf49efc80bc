"""Simulates what happens as things stand, and with changes, and says it in the cells of a table. Pure.

Called for `reshape what-if` and the client's `what_if` in their own process, and by the API service for the dashboard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from adaptive_scheduler.settings import QueueOrder
from coordinator.dashboard.words import NONE, listed, seconds
from coordinator.errors import Rejected
from coordinator.forecasts.forecast import Forecast, JobForecast, forecast
from coordinator.forecasts.live_state import LiveState
from coordinator.model import requirements
from coordinator.policies import POLICIES, settings_under

MOST_WEIGHT = 1_000_000
SUMS = {"makespan_s": "Makespan", "mean_completion_s": "Mean completion time", "missed": "Deadlines missed"}


@dataclass(frozen=True)
class WhatIf:
    """What happens as things stand (`now`), and with the changes (`then`; None without any). Printed: the sums."""

    now: Forecast
    then: Forecast | None
    left_out: tuple[str, ...] = ()  # ids of jobs on CPU, and of those that wait for something else than GPUs

    def __str__(self) -> str:
        return "\n".join(self._sum(name) for name in SUMS)

    @property
    def head(self) -> list[str]:
        then = ["THEN STARTS", "THEN ENDS"] if self.then is not None else []
        return ["JOB", "STARTS", "ENDS", *then, "DEADLINE"]

    @property
    def rows(self) -> list[list[str]]:
        """A row per job."""
        before, after = ({job.job_id: job for job in found.jobs} for found in (self.now, self.then or self.now))
        return [
            [
                name,
                *_cells(before.get(name)),
                *(_cells(after.get(name)) if self.then is not None else []),
                _deadline(after.get(name)),
            ]
            for name in dict.fromkeys([*before, *after])
        ]

    @property
    def times(self) -> list[dict[str, Any]]:
        """Return for each job `job_id`, and `now` and `then` as [start, end] in seconds from now; None if not there."""
        before, after = ({job.job_id: job for job in found.jobs} for found in (self.now, self.then or self.now))
        return [
            {
                "job_id": name,
                "now": _span(before.get(name)),
                "then": _span(after.get(name)) if self.then is not None else None,
            }
            for name in dict.fromkeys([*before, *after])
        ]

    @property
    def notes(self) -> list[str]:
        """What the sign ~ means where it stands, and who is not in it."""
        guesses = any(job.guess for job in (self.then or self.now).jobs)
        guess = ["~ rests on a length or a speed that is not known"] if guesses else []
        omits = f"Left out, on CPU or waiting for something else than GPUs: {listed([*self.left_out])}"
        return [*guess, *([omits] if self.left_out else [])]

    def _sum(self, name: str) -> str:
        said = f"{SUMS[name]}: {_value(name, getattr(self.now, name))}"
        return said if self.then is None else f"{said}, then {_value(name, getattr(self.then, name))}"


def compare(
    live: LiveState,
    *,
    submit: Iterable[Mapping[str, Any]] = (),
    gpus: Iterable[tuple[str, int]] = (),
    drain: Iterable[str] = (),
    policy: str | None = None,
    queue_order: str | None = None,
    deadlines: Iterable[tuple[str, str | float]] = (),
    weights: Iterable[tuple[str, str | float]] = (),
    goes_on: Callable[[], bool] = lambda: True,
) -> WhatIf:
    """Simulate the live state, and once more with all changes. `Rejected` with a sentence for one that cannot be made.

    `gpus`: types, and how many more or fewer; `deadlines`: jobs, and seconds or a time such as 30m; `weights`: queues
    or users, and their weights. Where `goes_on` says no, jobs that have not ended by then are left out.
    """
    changed = live.with_jobs(submit)
    for kind, count in gpus:
        changed = changed.with_gpus(count, kind)
    for node in drain:
        changed = changed.drained(node)
    for job_id, time in deadlines:
        changed = changed.with_deadline(job_id, deadline_s(job_id, time))
    for name, weight in weights:
        changed = with_weight(changed, name, weight)
    if policy is not None:
        changed = with_policy(changed, policy)
    if queue_order is not None:
        changed = with_queue_order(changed, queue_order)
    return WhatIf(forecast(live, goes_on), None if changed is live else forecast(changed, goes_on), live.left_out)


def with_policy(live: LiveState, name: str) -> LiveState:
    """Return the state under a policy of `reshape up`; what an operator has set stays as it is."""
    if name not in POLICIES:
        raise Rejected(f"There is no policy {name!r}; there are: {', '.join(POLICIES)}.")
    relaunches = POLICIES[name].config.get("reshape_by") == "relaunch"
    return replace(live, settings=settings_under(name, live.settings), relaunches=relaunches)


def with_queue_order(live: LiveState, order: str) -> LiveState:
    try:
        return replace(live, settings=replace(live.settings, queue_order=cast(QueueOrder, order)))
    except ValueError as error:
        raise Rejected(f"{error}.") from None


def with_weight(live: LiveState, name: str, weight: str | float) -> LiveState:
    """Return the state in which a queue has this weight, or a user if there is no such queue."""
    try:
        known = float(weight)
    except ValueError:
        known = -1.0
    if not 0 <= known <= MOST_WEIGHT:
        raise Rejected(f"{f'{name}={weight}'!r} is no name and weight; write QUEUE=2, or USER=2.")
    shares = live.snapshot.shares
    owners = {shares.owner_of(job.queue, job.owner) for job in live.snapshot.jobs}
    queues = {*shares.queues, *(owner.queue for owner in owners)}
    users = {*shares.users, *(owner.user for owner in owners)} - {""}
    if name in queues:
        changed = replace(shares, queues={**shares.queues, name: replace(shares.queue(name), weight=known)})
    elif name in users and not known:
        raise Rejected(f"{name} is a user, and the weight of a user must be above 0; only a queue may have 0.")
    elif name in users:
        changed = replace(shares, users={**shares.users, name: replace(shares.user(name), weight=known)})
    else:
        raise Rejected(f"There is no queue or user {name!r}; there are: {', '.join(sorted(queues | users)) or 'none'}.")
    return replace(live, snapshot=live.snapshot.then(shares=changed))


def deadline_s(job_id: str, time: str | float) -> float:
    """Return the seconds of a deadline such as 30m or 90."""
    known = float(time) if isinstance(time, str) and time.replace(".", "", 1).isdecimal() else time
    if not job_id or (found := requirements.seconds(known)) is None:
        raise Rejected(
            f"{f'{job_id}={time}' if job_id else time!r} names no job and time; write JOB=30m, or 90s or 2h."
        )
    return found


def _value(name: str, value: float | None) -> str:
    return "never reached" if value is None else str(value) if name == "missed" else seconds(value)


def _cells(job: JobForecast | None) -> list[str]:
    if job is None:
        return [NONE, NONE]
    ends = "never" if job.end_s is None else f"in {seconds(job.end_s)}{' ~' * job.guess}"
    if job.start_s is None:
        return ["never" if job.end_s is None else "runs", ends]
    return [f"in {seconds(job.start_s)}", ends]


def _span(job: JobForecast | None) -> list[float | None] | None:
    """Return its start and end; of one that never starts there is nothing to draw."""
    if job is None or (job.start_s is None and job.end_s is None):
        return None
    return [job.start_s or 0.0, job.end_s]


def _deadline(job: JobForecast | None) -> str:
    if job is None or job.late_s is None:
        return NONE
    return "kept" if not job.late_s else f"missed by {seconds(job.late_s)}" if job.end_s is not None else "missed"
