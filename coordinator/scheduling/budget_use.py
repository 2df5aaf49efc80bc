"""Adds up the GPU-hours that budgets count: those of the present week or month, by queue and by user.

A week begins on Monday and a month on its first day, at midnight of this machine's time zone. What is used is counted
in seconds that no clock adjustment changes; only the hour that it is written to, and which week or month it is, are the
wall clock's. Called by `usage_accounts`, under its lock.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from adaptive_scheduler.shares import GpuBudget, JobOwner, Shares, budget_key, hours
from coordinator.model.records import number
from coordinator.stores.retention import HOUR_S

log = logging.getLogger(__name__)

Period = Literal["week", "month"]
Rows = Iterable[Mapping[str, Any]]


def begin_of(period: Period, wall: float) -> float:
    """Return when the week or month of this time began, in seconds since 1970."""
    day = datetime.fromtimestamp(wall).replace(hour=0, minute=0, second=0, microsecond=0)
    first = day - timedelta(days=day.weekday()) if period == "week" else day.replace(day=1)
    return first.timestamp()


def end_of(period: Period, wall: float) -> float:
    """Return when the week or month of this time ends, in seconds since 1970."""
    begin = datetime.fromtimestamp(begin_of(period, wall))
    after = begin + timedelta(days=7) if period == "week" else (begin + timedelta(days=31)).replace(day=1)
    return after.timestamp()


class BudgetUse:
    """The use of the periods for which there are budgets."""

    def __init__(self, read: Callable[[float], Rows]) -> None:
        """`read`: returns the accounts of each hour since a time, in seconds since 1970."""
        self._read = read
        self._begins: dict[Period, float] = {}
        self._used: dict[Period, dict[JobOwner, float]] = {}  # GPU-seconds
        self._warned: set[tuple[str, float, str]] = set()
        self.spent: Mapping[str, float] = {}
        """GPU-hours by `budget_key`; of queues and users with a budget only."""

    def forget_accounts(self) -> None:
        """Read the accounts anew at the next look."""
        self._begins = {}

    def add(self, owner: JobOwner, gpu_s: float, hour_ts: float) -> None:
        """Count GPU-seconds that were used in the hour that begins at `hour_ts`."""
        for period, begin in self._begins.items():
            if hour_ts >= begin:
                self._used[period][owner] += gpu_s

    def look(self, shares: Shares, wall: float) -> Mapping[str, float]:
        """Return the GPU-hours that were used, by `budget_key`, and write to the log what comes near its end."""
        if not shares.budgets:
            self._begins = {}
            self.spent = {}
            return self.spent
        for period in {budget.per for budget in shares.budgets.values()}:
            begin = begin_of(period, wall)
            if self._begins.get(period) != begin:
                self._begins[period] = begin
                self._used[period] = self._sum_between(begin, end_of(period, wall))
        self.spent = {key: self._hours_spent(key, budget) for key, budget in shares.budgets.items()}
        self._warn_once(shares)
        return self.spent

    def _sum_between(self, begin: float, end: float) -> dict[JobOwner, float]:
        """Sum the hours of one period. A clock that was set ahead may have written some that lie in later ones."""
        sums: dict[JobOwner, float] = defaultdict(float)
        for row in self._read(begin):
            if (number(row.get("hour")) or 0.0) * HOUR_S < end:
                sums[JobOwner(str(row["queue"]), str(row["user"]))] += number(row.get("gpu_s")) or 0.0
        return sums

    def _hours_spent(self, key: str, budget: GpuBudget) -> float:
        used = self._used[budget.per].items()
        keys = ((budget_key("queue", owner.queue), budget_key("user", owner.user), gpu_s) for owner, gpu_s in used)
        return sum(gpu_s for queue, user, gpu_s in keys if key in (queue, user)) / 3600

    def _warn_once(self, shares: Shares) -> None:
        for key, budget in shares.budgets.items():
            state = state_of(budget, self.spent[key])
            told = key, self._begins[budget.per], state
            if state != "ok" and told not in self._warned:
                self._warned.add(told)
                log.warning("%s", sentence(key, budget, self.spent[key]))


def state_of(budget: GpuBudget, used: float) -> Literal["ok", "warning", "used up"]:
    """Return how a budget stands. `used`: GPU-hours."""
    if used >= budget.gpu_hours:
        return "used up"
    return "warning" if used >= budget.warn_at * budget.gpu_hours else "ok"


def sentence(key: str, budget: GpuBudget, used: float) -> str:
    """Say how a budget stands, for people."""
    says = f"{key} has used {hours(used)} of its {budget.gpu_hours:g} GPU-hours of this {budget.per}"
    if used >= budget.gpu_hours:
        return f"{says}: its jobs neither start nor grow until the next {budget.per}; those that run keep training."
    return f"{says}."
