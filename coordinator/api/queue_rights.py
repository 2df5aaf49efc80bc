"""Shows and sets who may have how many GPUs, and shows what everybody has used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.api.access import Access, UserService
from coordinator.api.shares_view import shares_view, usage_view
from coordinator.ports import Clock
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache

View = dict[str, Any]


class QueueRights(UserService):
    """Thread-safe."""

    def __init__(
        self, access: Access, cache: Cache, loop: DecisionLoop, clock: Clock, read_store: Callable[[], None]
    ) -> None:
        """`read_store` makes the loop read at once."""
        super().__init__(access)
        self._cache = cache
        self._loop = loop
        self._clock = clock
        self._read_store = read_store

    def shares(self) -> View:
        """Return of queues and users what each may have, has and has used lately; what is wrong with `shares.yaml`."""
        loop = self._loop
        view = shares_view(
            loop.queue_shares.shares,
            loop.accounts.standings,
            loop.last_snapshot,
            self._clock.now(),
            loop.config.shares,
            loop.shares_file.problem,
            loop.accounts.spent,
            loop.queue_shares.of_volcano,
        )
        if self.access.sees_all:
            return view
        budgets = [one for one in view["budgets"] if one["kind"] == "queue" or self._is_caller(one["name"])]
        return view | {
            "users": self._own_rows(view["users"]),
            "budgets": budgets,
            "problem": self.access.without_names_in(view["problem"]),
            "queues": [self._queue_of_users(one) for one in view["queues"]],
        }

    def set_shares(self, text: str) -> View:
        """Replace `shares.yaml`; answered as `shares` is. `Rejected` for one that cannot be kept."""
        self.access.require_admin("set the shares of users and queues")
        self._loop.shares_file.write(text, self._cache.gpus_by_type())
        self._read_store()
        answer = self.shares()
        self.access.note_change("shares", self._caller.name if self._caller is not None else "")
        return answer

    def usage(self, since: float) -> list[View]:
        """Return GPU-hours by queue, user and GPU type since the hour of this time (seconds since 1970)."""
        rows = usage_view(self._loop.accounts.rows(since))
        return rows if self.access.sees_all else self._own_rows(rows)

    def _queue_of_users(self, view: View) -> View:
        """Return a queue with the caller alone among those who may use and operate it, and one word for all others."""
        shown = {name: sorted({self.access.shown_user(user) for user in view[name]}) for name in ("users", "operators")}
        return view | shown

    def _own_rows(self, rows: list[View]) -> list[View]:
        return [row for row in rows if self._is_caller(row["user"])]

    def _is_caller(self, user: str) -> bool:
        return self._caller is not None and self._caller.name == user
