"""Handlers of rights to GPUs: who may have how many, and what everybody has used."""

from __future__ import annotations

from coordinator.errors import Rejected
from coordinator.http import wire
from coordinator.http.base import Handler


class SharesHandler(Handler):
    body_limit = 512 * 1024

    async def get(self) -> None:
        self.answer(await self.call(self.services.rights.shares))

    async def post(self) -> None:
        doc = self.read()
        wire.only_fields(doc, "text")
        if not isinstance(doc["text"], str):
            raise Rejected("text must be the text of a shares.yaml.")
        self.answer(await self.call(self.services.rights.set_shares, doc["text"]))


class UsageHandler(Handler):
    async def get(self) -> None:
        since = wire.whole("since", self.get_query_argument("since", None), 0, 0, wire.MAX_INTEGER)
        self.answer({"usage": await self.call(self.services.rights.usage, float(since))})
