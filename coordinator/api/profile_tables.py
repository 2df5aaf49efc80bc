"""Shows the profiles of job types and imports rows into them, for administrators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.api import profile_rows
from coordinator.api.access import Access, UserService
from coordinator.errors import Rejected
from coordinator.ports import Store
from coordinator.telemetry.profile_estimator import OBSERVATIONS, ProfileEstimator

View = dict[str, Any]


class ProfileTables(UserService):
    """Thread-safe. `table` is one of `coordinator.ports.PROFILE_TABLES`."""

    def __init__(
        self, access: Access, store: Store, estimator: ProfileEstimator, read_store: Callable[[], None]
    ) -> None:
        """`read_store` makes the loop read at once."""
        super().__init__(access)
        self._store = store
        self._estimator = estimator
        self._read_store = read_store

    def profiles(self, table: str) -> list[View]:
        """Return the rows of this table, with what was learned until now."""
        self.access.require_admin("read the profiles of all users' jobs")
        rows = {row["_id"]: row for row in self._store.list(profile_rows.table(table))}
        rows |= self._estimator.unwritten(table)
        return [{k: v for k, v in row.items() if k != "version"} for row in rows.values()]

    def import_profiles(self, table: str, rows: list[View]) -> int:
        """Store all rows or none, and return their number. A row replaces the one of the same key and origin.

        `Rejected` with one problem per bad row.
        """
        self.access.require_admin("import profiles")
        found = profile_rows.row_problems(profile_rows.table(table), rows)
        if found:
            raise Rejected("No row was imported: " + "; ".join(found[:5]) + ".", problems=tuple(found[:50]))
        known = {profile_rows.describes(row): row["_id"] for row in self._store.list(table)}
        keys = [profile_rows.describes(row) for row in rows]
        docs = [{**r, "origin": k[-1], "_id": known.get(k, "|".join(k))} for r, k in zip(rows, keys, strict=True)]
        for doc in docs:
            self._store.put(table, doc)
        if table == OBSERVATIONS:
            self._estimator.know(docs)
        self._read_store()
        self.access.note_change("import", table)
        return len(rows)
