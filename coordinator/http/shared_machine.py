"""Knows who calls a `reshape up` that all users of a machine share, and what each may do.

Promises: the user is who the kernel says made the connection, or whose token was sent, never whom a request names. A
uid without an account is refused all. The master token is root's. Used by `base.py` and by the dashboard's handlers.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import cast
from weakref import WeakKeyDictionary

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream

from coordinator.adapters.accounts import Callers
from coordinator.adapters.clock import SystemClock
from coordinator.adapters.user_tokens import UserTokens
from coordinator.caller import FORBIDDEN, UnixUser
from coordinator.errors import Rejected
from coordinator.http import peers
from coordinator.http.auth import bearer, is_bearer

ROOT = 0
LONGEST_TOKEN_S = 366 * 86_400


@dataclass(frozen=True)
class SharedMachine:
    """Tells the handlers of an application who calls."""

    callers: Callers
    tokens: UserTokens
    url: str  # of the dashboard: browsers reach no Unix socket
    clock: SystemClock
    peers: WeakKeyDictionary[IOStream, int] = field(default_factory=WeakKeyDictionary)  # of open connections

    def caller_of(self, request: HTTPServerRequest, master: str) -> UnixUser | None:
        """Return who calls the API; None where nobody has shown who it is. `Rejected`: a user who may nothing."""
        if came_by_unix_socket(request):
            return self.known(self.peer(request))
        header = request.headers.get("Authorization")
        if is_bearer(header, master):
            return self.known(ROOT)
        uid, name = self.tokens.user_of(bearer(header), self.clock.wall()) or (None, "")
        caller = self.known(uid)
        return caller if caller is not None and caller.name == name else None  # the uid may be somebody else's by now

    def peer(self, request: HTTPServerRequest) -> int | None:
        """Return the uid of whoever has made the connection, which is asked of the kernel once."""
        stream = _stream_of(request)
        if (uid := self.peers.get(stream)) is None and (uid := peers.user_of(stream.socket)) is not None:
            self.peers[stream] = uid
        return uid

    def known(self, uid: int | None) -> UnixUser | None:
        """Return the user of a uid. `Rejected` with status 403 where this machine has no such account."""
        if uid is None:
            return None
        if (caller := self.callers.caller(uid)) is None:
            raise Rejected(f"User id {uid} has no account on this machine: ask its administrator.", FORBIDDEN)
        return caller


def came_by_unix_socket(request: HTTPServerRequest) -> bool:
    """Return whether this came by the socket of which the kernel tells who connected."""
    return bool(_stream_of(request).socket.family == socket.AF_UNIX)


def _stream_of(request: HTTPServerRequest) -> IOStream:
    return cast(HTTP1Connection, request.connection).stream
