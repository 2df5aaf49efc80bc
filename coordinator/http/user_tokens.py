"""Handlers of a user's own tokens on a shared machine, for who comes by the Unix socket: no token makes another one."""

from __future__ import annotations

from coordinator.caller import UnixUser
from coordinator.errors import Rejected
from coordinator.http import wire
from coordinator.http.base import Handler
from coordinator.http.shared_machine import LONGEST_TOKEN_S, SharedMachine, came_by_unix_socket


class OwnTokensHandler(Handler):
    """Base of both: for users of a shared machine, by its Unix socket."""

    async def prepare(self) -> None:
        await super().prepare()
        if self.request.method != "OPTIONS" and (self.shared is None or not came_by_unix_socket(self.request)):
            raise Rejected("Only users of a shared machine have tokens, and make them by its Unix socket.", 404)

    @property
    def user(self) -> UnixUser:
        user = self.caller
        assert isinstance(user, UnixUser)  # no other caller has passed `prepare`
        return user

    @property
    def machine(self) -> SharedMachine:
        machine: SharedMachine = self.settings["shared"]
        return machine


class TokensHandler(OwnTokensHandler):
    """Lists and makes the caller's tokens."""

    async def get(self) -> None:
        machine = self.machine
        self.answer({"tokens": await self.call(machine.tokens.tokens_of_user, self.user.uid, machine.clock.wall())})

    async def post(self) -> None:
        machine = self.machine
        doc = self.read()
        wire.only_fields(doc, "lasts_s")
        lasts_s = doc["lasts_s"]
        if type(lasts_s) is not int or not 1 <= lasts_s <= LONGEST_TOKEN_S:
            raise Rejected(f"lasts_s must be a whole number of seconds from 1 to {LONGEST_TOKEN_S}, a year.")
        who = self.user
        made = await self.call(machine.tokens.make, who.uid, who.name, lasts_s, machine.clock.wall())
        self.answer({**made, "url": machine.url}, 201)


class TokenHandler(OwnTokensHandler):
    """Revokes one of them."""

    async def delete(self, token_id: str) -> None:
        await self.call(self.machine.tokens.revoke, self.user.uid, token_id)
        self.answer({"id": token_id})
