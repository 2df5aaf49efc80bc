"""Handlers that read the profile tables and import rows into them."""

from __future__ import annotations

from coordinator.errors import Rejected
from coordinator.http import wire
from coordinator.http.base import Handler
from coordinator.ports import PROFILE_TABLES


class ProfilesHandler(Handler):
    body_limit = 1024 * 1024

    async def get(self, table: str) -> None:
        self.answer({"rows": await self.call(self.services.profiles.profiles, _known(table))})

    async def post(self, table: str) -> None:
        _known(table)
        doc = self.read()
        wire.only_fields(doc, "rows")
        rows = doc["rows"]
        if not isinstance(rows, list) or not rows:
            raise Rejected("rows must be a list with at least one row.")
        if bad := [f"row {i + 1} must be an object" for i, row in enumerate(rows) if not isinstance(row, dict)]:
            raise Rejected("Some rows are not objects; none was stored.", problems=tuple(bad[:20]))
        self.answer({"imported": await self.call(self.services.profiles.import_profiles, table, rows)})


def _known(table: str) -> str:
    if table not in PROFILE_TABLES:
        raise Rejected(f"There is no such profile table; there are: {', '.join(PROFILE_TABLES)}.", 404)
    return table
