"""Defines who may use how many GPUs: queues, their users, and how much each has used lately.

Every job has an owner, a user in a queue. Without a shares file all jobs are in one queue and all users weigh the same.
Read by `rights`, filled by the coordinator from `shares.yaml` and by the simulator from its workload. Pure; times in
seconds, use in GPU-seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

DEFAULT_QUEUE = "default"
MOST_MAKESPAN_WEIGHT = 1_000


class JobOwner(NamedTuple):
    """Names whose job it is. `user` is empty if nobody is named, and for all jobs of a queue that is one owner."""

    queue: str
    user: str


@dataclass(frozen=True, slots=True)
class GpuBudget:
    """GPU-hours that a queue or a user may use in each week or month."""

    gpu_hours: float
    per: Literal["week", "month"] = "month"
    warn_at: float = 0.8
    """Part of it at whose use people are warned."""


def budget_key(kind: Literal["queue", "user"], name: str) -> str:
    """Return the name under which the use of a budget is kept."""
    return f"{kind} {name}"


def hours(used: float) -> str:
    """Return GPU-hours for people, as exact as the tables of `reshape usage`: 0.18 is not all of a budget of 0.2."""
    return str(round(used, 2))


@dataclass(frozen=True, slots=True)
class QueueShare:
    """Limits and weight of one queue."""

    weight: float = 1.0
    """Share of what is not guaranteed, against other queues; 0: only its guarantee and what nobody else wants."""
    guaranteed: int = 0
    """GPUs of any type that it always gets back; lent while it does not use them."""
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
    operators: tuple[str, ...] = ()
    """Users who may hold, release, cancel and reprioritise the jobs of others in it."""
    reclaimable: bool = True
    """Whether other queues get back what it has beyond its share."""
    owners: Literal["users", "shared"] = "users"
    """Whether GPUs are shared among its users, or all its jobs count as those of one."""
    makespan_weight: float | None = None
    """Weight in plans of one per cent of its jobs' last end, against one per cent of their mean completion time; None:
    `Settings.makespan_weight` (1.12)."""
    budget: GpuBudget | None = None
    """GPU-hours that all its jobs may use; None: any number."""
    guaranteed_types: Mapping[str, int] = field(default_factory=dict)
    """GPUs by type that it always gets back, in place of `guaranteed`."""
    parent: str = ""
    """Queue in whose limit its GPUs count, too, and in those of the queues above that; empty: none."""

    @property
    def guaranteed_in_all(self) -> int:
        """Return the GPUs that it is guaranteed, of all types together."""
        return self.guaranteed + sum(self.guaranteed_types.values())

    @property
    def guarantee_in_words(self) -> str:
        """Return what it is guaranteed, such as `2`, or `2 V100, 4 K80`."""
        by_type = [f"{count} {gpu_type}" for gpu_type, count in self.guaranteed_types.items()]
        return ", ".join(by_type) or str(self.guaranteed)

    @property
    def most(self) -> float:
        """Return the most GPUs that it may have."""
        return self.most_together if self.borrow else min(self.most_together, self.guaranteed_in_all)

    @property
    def most_together(self) -> float:
        """Return the most GPUs that it and the queues below it may have: whether it borrows is its own matter."""
        return math.inf if self.limit is None else self.limit


@dataclass(frozen=True, slots=True)
class UserShare:
    """Weight and queue of one user."""

    weight: float = 1.0
    """Against the other users of the queue."""
    queue: str = ""
    """The queue of jobs that name none; empty: the first one that lists the user, else `default`."""
    budget: GpuBudget | None = None
    """GPU-hours that its jobs in all queues may use; None: any number."""


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
    default_queue: str = DEFAULT_QUEUE
    """Queue of jobs that name none and whose user is listed in none."""
    most_reserved_s: float = 86400.0
    """Seconds for which the reservations of one user may keep all GPUs together; fewer GPUs for longer."""
    turn: float = 0.1
    """Credit that an owner must have more than another to take a turn of the whole machine."""

    def queue(self, name: str) -> QueueShare:
        return self.queues.get(name, ANY_QUEUE)

    def limiting_parents(self, name: str) -> tuple[str, ...]:
        """Return the queues above one whose limits also bind it, the nearest first."""
        return self._limiting_parents.get(name, ())

    @cached_property
    def _limiting_parents(self) -> Mapping[str, tuple[str, ...]]:
        """Return them by queue that has any. Queues that are parents of each other are above each other once."""
        found: dict[str, tuple[str, ...]] = {}
        for name in self.queues:
            above = [name]
            while (parent := self.queue(above[-1]).parent) and parent not in above:
                above.append(parent)
            limiting = tuple(parent for parent in above[1:] if self.queue(parent).limit is not None)
            if limiting:
                found[name] = limiting
        return found

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
        return next((name for name, share in self.queues.items() if user and user in share.users), self.default_queue)

    def owner_of(self, queue: str, user: str) -> JobOwner:
        name = self.queue_of(queue, user)
        return JobOwner(name, "" if self.queue(name).owners == "shared" else user)

    @cached_property
    def budgets(self) -> Mapping[str, GpuBudget]:
        """Return all budgets by `budget_key`."""
        queues = {budget_key("queue", name): one.budget for name, one in self.queues.items()}
        users = {budget_key("user", name): one.budget for name, one in self.users.items()}
        return {key: budget for key, budget in {**queues, **users}.items() if budget is not None}

    def spent_budget(self, spent: Mapping[str, float], owner: JobOwner, user: str) -> str:
        """Return which budget is used up for a job, such as `queue nlp has used 20.1 of its 20 GPU-hours of this week`;
        empty if none is. `spent`: GPU-hours of the present period by `budget_key`. `user`: whom the job names.
        """
        for key, name in (
            (budget_key("queue", owner.queue), f"queue {owner.queue}"),
            (budget_key("user", user), user),
        ):
            budget = self.budgets.get(key)
            if budget is not None and spent.get(key, 0.0) >= budget.gpu_hours:
                return f"{name} has used {hours(spent[key])} of its {budget.gpu_hours:g} GPU-hours of this {budget.per}"
        return ""

    def refusal(self, queue: str, user: str) -> str:
        """Return why a job of this user may not be submitted to this queue; empty if it may."""
        if queue and self.queues and queue not in self.queues and queue != DEFAULT_QUEUE:
            return f"queue {queue!r} is unknown; the queues are {_listed({*self.queues, DEFAULT_QUEUE})}"
        name = self.queue_of(queue, user)
        may = self.queue(name).users
        if may and user not in may:
            who = f"user {user!r}" if user else "a job without an owner"
            return f"{who} may not use queue {name}: shares.yaml lets {_listed(may)} use it"
        return ""

    def problem(self, gpus: Mapping[str, int] | None = None) -> str:
        """Return what is wrong with these shares, as a sentence; empty if nothing is. `gpus`: of all nodes by type, if
        these are known."""
        for name, queue in self.queues.items():
            if queue.limit is not None and queue.limit < queue.guaranteed_in_all:
                return (
                    f"Queue {name} has a limit of {queue.limit}, below the {queue.guaranteed_in_all} GPUs that it is "
                    "guaranteed; raise the limit or lower `guaranteed`."
                )
        if gpus and (problem := self._problem_of_guarantees(gpus)):
            return problem
        for name, user in self.users.items():
            if user.queue and user.queue not in self.queues:
                return f"User {name} belongs to queue {user.queue!r}, which `queues` does not name; add it there."
        return ""

    def _problem_of_guarantees(self, gpus: Mapping[str, int]) -> str:
        of_type = Counter[str]()
        for name, queue in self.queues.items():
            of_type.update(queue.guaranteed_types)
            if unknown := [gpu_type for gpu_type in queue.guaranteed_types if gpu_type not in gpus]:
                return f"Queue {name} is guaranteed GPUs of type {unknown[0]!r}; the types are {_listed(gpus)}."
        for gpu_type, count in of_type.items():
            if count > gpus[gpu_type]:
                given = f"{count} {gpu_type} together"
                return (
                    f"The queues are guaranteed {given}, and there are {gpus[gpu_type]} of these; lower `guaranteed`."
                )
        total = sum(queue.guaranteed_in_all for queue in self.queues.values())
        there = sum(gpus.values())
        if total > there:
            return f"The queues are guaranteed {total} GPUs together, and there are {there}; lower `guaranteed`."
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
