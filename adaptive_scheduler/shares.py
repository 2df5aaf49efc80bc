"""Defines who may use how many GPUs: queues, their users, and how much each has used lately.

Every job has an owner, a user in a queue. Without a shares file all jobs are in one queue and all users weigh the same.
Read by `rights`, filled by the coordinator from `shares.yaml` and by the simulator from its workload. Pure; times in
seconds, use in GPU-seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

DEFAULT_QUEUE = "default"


class JobOwner(NamedTuple):
    """Names whose job it is. `user` is empty if nobody is named, and for all jobs of a queue that is one owner."""

    queue: str
    user: str


@dataclass(frozen=True, slots=True)
class QueueShare:
    """Limits and weight of one queue."""

    weight: float = 1.0
    """Share of what is not guaranteed, against other queues; 0: only its guarantee and what nobody else wants."""
    guaranteed: int = 0
    """GPUs that it always gets back; lent while it does not use them."""
    limit: int | None = None
    """Most GPUs that it ever has; None: all."""
    borrow: bool = True
    """Whether it may have more than its guarantee."""
    user_limit: int | None = None
    """Most GPUs that one of its users has; None: all of the queue."""
    max_jobs: int | None = None
    """Most unfinished jobs of one of its users; None: any number."""
    users: tuple[str, ...] = ()
    """Users who may submit to it; empty: everybody."""
    owners: Literal["users", "shared"] = "users"
    """Whether GPUs are shared among its users, or all its jobs count as those of one."""

    @property
    def most(self) -> float:
        """Return the most GPUs that it may have."""
        limit = math.inf if self.limit is None else self.limit
        return limit if self.borrow else min(limit, self.guaranteed)


@dataclass(frozen=True, slots=True)
class UserShare:
    """Weight and queue of one user."""

    weight: float = 1.0
    """Against the other users of the queue."""
    queue: str = ""
    """The queue of jobs that name none; empty: the first one that lists the user, else `default`."""


ANY_QUEUE = QueueShare()
ANY_USER = UserShare()


@dataclass(frozen=True)
class Shares:
    """Queues and users by name; those without an entry have the defaults."""

    queues: Mapping[str, QueueShare] = field(default_factory=dict)
    users: Mapping[str, UserShare] = field(default_factory=dict)
    gpu_values: Mapping[str, float] = field(default_factory=dict)
    """Value of a GPU by type, against others; empty: by measured speeds."""
    half_life_s: float = 86400.0
    """Seconds after which use counts half."""
    patience_s: float = 600.0
    """Seconds that an entitled job waits before a job of somebody else is suspended for it."""
    min_run_s: float = 600.0
    """Seconds that a job has run before it is suspended for somebody else."""
    turn: float = 0.1
    """Credit that an owner must have more than another to take a turn of the whole machine."""

    def queue(self, name: str) -> QueueShare:
        return self.queues.get(name, ANY_QUEUE)

    def user(self, name: str) -> UserShare:
        return self.users.get(name, ANY_USER)

    def queue_of(self, queue: str, user: str) -> str:
        """Return the queue of a job that names `queue`, or none (empty). One that is unknown counts as none."""
        if not self.queues:
            return DEFAULT_QUEUE
        if queue in self.queues:
            return queue
        if self.user(user).queue in self.queues:
            return self.user(user).queue
        return next((name for name, share in self.queues.items() if user and user in share.users), DEFAULT_QUEUE)

    def owner_of(self, queue: str, user: str) -> JobOwner:
        name = self.queue_of(queue, user)
        return JobOwner(name, "" if self.queue(name).owners == "shared" else user)

    def refusal(self, queue: str, user: str) -> str:
        """Return why a job of this user may not be submitted to this queue; empty if it may."""
        if queue and self.queues and queue not in self.queues and queue != DEFAULT_QUEUE:
            return f"queue {queue!r} is unknown: shares.yaml names {_listed(self.queues)}"
        name = self.queue_of(queue, user)
        may = self.queue(name).users
        if may and user not in may:
            who = f"user {user!r}" if user else "a job without an owner"
            return f"{who} may not use queue {name}: shares.yaml lets {_listed(may)} use it"
        return ""

    def problem(self, gpus: int | None = None) -> str:
        """Return what is wrong with these shares, as a sentence; empty if nothing is. `gpus`: of all nodes, if these
        are known."""
        for name, queue in self.queues.items():
            if queue.limit is not None and queue.limit < queue.guaranteed:
                return (
                    f"Queue {name} has a limit of {queue.limit}, below the {queue.guaranteed} GPUs that it is "
                    "guaranteed; raise the limit or lower `guaranteed`."
                )
        total = sum(queue.guaranteed for queue in self.queues.values())
        if gpus is not None and total > gpus:
            return f"The queues are guaranteed {total} GPUs together, and there are {gpus}; lower `guaranteed`."
        for name, user in self.users.items():
            if user.queue and user.queue not in self.queues:
                return f"User {name} belongs to queue {user.queue!r}, which `queues` does not name; add it there."
        return ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def decayed(use: float, held: float, passed_s: float, half_life_s: float) -> float:
    """Return the decayed use after `passed_s` seconds in which `held` GPUs were held."""
    left = math.pow(0.5, passed_s / half_life_s)
    return use * left + held * (1.0 - left) * half_life_s / math.log(2)


class DecayedUse:
    """Adds up the use of owners between one look and the next. Costs grow with the owners, not with their jobs."""

    LEAST = 1.0
    """GPU-seconds below which an owner who holds nothing is forgotten."""

    def __init__(
        self, use: Mapping[JobOwner, float] | None = None, held: Mapping[JobOwner, float] | None = None
    ) -> None:
        self.use = dict(use or {})
        self.held = dict(held or {})
        """GPUs of each owner since the last look."""

    def look(self, passed_s: float, held: Mapping[JobOwner, float], half_life_s: float) -> None:
        """Count `passed_s` seconds with what was held until now. `held`: what is held from now on."""
        if passed_s > 0:
            for owner in self.use.keys() | self.held.keys():
                self.use[owner] = decayed(self.use.get(owner, 0.0), self.held.get(owner, 0.0), passed_s, half_life_s)
        self.held = dict(held)
        gone = [one for one, use in self.use.items() if use < self.LEAST and not self.held.get(one)]
        for owner in gone:
            del self.use[owner]
