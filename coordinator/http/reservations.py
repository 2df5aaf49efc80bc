"""Handlers of reservations: GPUs that are kept for a user for a time."""

from __future__ import annotations

from coordinator.errors import Rejected
from coordinator.http import wire
from coordinator.http.base import Handler
from coordinator.http.jobs import HEADER_USER
from coordinator.model.owner_names import OWNER
from coordinator.model.schema.job_fields import MAX_GPUS

TEXTS = ("node", "gpu_type", "user")
LONGEST_TEXT = 256


class ReservationsHandler(Handler):
    async def get(self) -> None:
        self.answer({"reservations": await self.call(self.services.reservations.listed)})

    async def post(self) -> None:
        doc = self.read()
        wire.only_fields(doc, "gpus", "until", maybe=("from", "nodes", *TEXTS))
        if type(doc["gpus"]) is not int or not 1 <= doc["gpus"] <= MAX_GPUS:
            raise Rejected(f"gpus must be a whole number from 1 to {MAX_GPUS}.")
        nodes = doc.get("nodes")
        if nodes is not None and (type(nodes) is not int or not 1 <= nodes <= doc["gpus"]):
            raise Rejected("nodes must be a whole number from 1 to that of gpus.")
        for name in TEXTS:
            text = doc.get(name)
            if text is not None and not (isinstance(text, str) and 0 < len(text) <= LONGEST_TEXT):
                raise Rejected(f"{name} must be a text.")
        times = {name: wire.time(name, doc.get(name)) for name in ("from", "until")}
        if times["until"] is None:
            raise Rejected("until must be a time in seconds since 1970.")
        user = self.request.headers.get(HEADER_USER, "")
        named = {} if self.knows_callers or not OWNER.fullmatch(user) else {"user": user}
        self.answer(await self.call(self.services.reservations.reserve, {**named, **doc, **times}), 201)


class ReservationHandler(Handler):
    async def delete(self, reservation_id: str) -> None:
        self.answer(await self.call(self.services.reservations.cancel, reservation_id))
