"""Lets a browser in: a one-time link, asked for with the API's token, is exchanged for a session cookie.

A session is a signed time of its end, so it holds over restarts of the coordinator and at each replica that has the
same token, and nothing of it is stored. Only a session of a cluster's user is kept, in memory, with the user's token:
that is asked about again and again, so a session ends with it. Scripts cannot read the cookie, and no other site can
send it; forms carry a second proof (`Sessions.proof`), as pages at other ports of the same machine count as the same
site.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from typing import NamedTuple

SESSION_S = 12 * 3600.0
LINK_S = 300.0
MOST_LINKS_OF_ONE = 10  # of one user of a shared machine
USERS_WORDS = 4  # of a cookie that is for one user: its end, a random part, the uid, the signature
MOST_LINKS = 100  # not used yet; the oldest are dropped first
MOST_SESSIONS = 1000  # of users of a cluster, likewise
MOST_SESSIONS_OF_ONE = 10


class Sessions:
    """Makes and checks session cookies with a key derived from the API's token. Times are seconds since 1970."""

    def __init__(self, token: str) -> None:
        """With an empty token there are no sessions."""
        self._key = hmac.digest(token.encode(), b"dashboard session", hashlib.sha256) if token else b""
        # Cookies know no port: coordinators of one machine must not overwrite each other's.
        self.cookie = "reshape_" + self._signed("cookie")[:8]

    def begin(self, wall: float, uid: int | None = None) -> str:
        """The value of a new session's cookie. `uid`: of the user that it is for, on a shared machine."""
        about = f"{int(wall + SESSION_S):x}.{secrets.token_hex(8)}{'' if uid is None else f'.{uid}'}"
        return f"{about}.{self._signed(about)}"

    def user_of(self, value: str | None, wall: float) -> int | None:
        """Return the user that a session of a shared machine is for; None if it does not hold, or is for nobody."""
        words = (value or "").split(".")
        return int(words[2]) if self.holds(value, wall) and len(words) == USERS_WORDS else None

    def holds(self, value: str | None, wall: float) -> bool:
        """True if we signed this cookie and its time is not over."""
        about, _, signature = (value or "").rpartition(".")
        fits = hmac.compare_digest(signature.encode("utf-8", "replace"), self._signed(about).encode())
        return bool(self._key) and fits and int(about.partition(".")[0], 16) > wall

    def proof(self, value: str | None) -> str:
        """What forms of a session carry, since a page of someone else can send the cookie but not read a page."""
        return self._signed(f"form {value}")

    def proves(self, value: str | None, given: str) -> bool:
        return hmac.compare_digest(self.proof(value).encode(), given.encode("utf-8", "replace"))

    def _signed(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class TokenSessions:
    """Keeps the tokens of a cluster's users by the secrets in their cookies. Belongs to the server's event loop. Times
    are seconds of any steady clock."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, str, str]] = OrderedDict()  # end, user, token

    def begin(self, token: str, user: str, now: float) -> str:
        """Return the value of a new session's cookie."""
        secret = secrets.token_urlsafe(32)
        own = [key for key, (_, whose, _) in self._kept.items() if whose == user]
        if len(own) >= MOST_SESSIONS_OF_ONE:  # so that nobody's push out those of others
            del self._kept[own[0]]
        self._kept[_digest(secret)] = now + SESSION_S, user, token
        while len(self._kept) > MOST_SESSIONS:
            self._kept.popitem(last=False)
        return secret

    def token_of(self, cookie: str | None, now: float) -> str:
        """Return the token of a session's user; empty if there is no such session any more."""
        until, _, token = self._kept.get(_digest(cookie or ""), (0.0, "", ""))
        return token if until > now else ""

    def end(self, cookie: str | None) -> None:
        self._kept.pop(_digest(cookie or ""), None)


class LinkUser(NamedTuple):
    """Whose browser a link lets in: a user of a shared machine, a user of a cluster by a token, or the operator."""

    uid: int | None = None
    token: str = ""
    name: str = ""  # of a cluster's user, who may have any number of tokens


OPERATOR = LinkUser()


class OneTimeLinks:
    """Secrets of links that let one browser in once. Thread-safe. Times are seconds of any steady clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: OrderedDict[str, tuple[float, LinkUser]] = OrderedDict()

    def make(self, now: float, user: LinkUser = OPERATOR) -> str:
        """Return a new secret. `user`: on a shared machine the only one who may use it."""
        secret = secrets.token_urlsafe(24)
        with self._lock:
            own = [key for key, (_, whose) in self._until.items() if (whose.uid, whose.name) == (user.uid, user.name)]
            if user != OPERATOR and len(own) >= MOST_LINKS_OF_ONE:  # so that nobody's push out those of others
                del self._until[own[0]]
            self._until[_digest(secret)] = now + LINK_S, user
            while len(self._until) > MOST_LINKS:
                self._until.popitem(last=False)
        return secret

    def redeem(self, secret: str, now: float, uid: int | None = None) -> LinkUser | None:
        """Return once whose browser a secret lets in that was just made; None for others. Another user of a shared
        machine, of which `uid` is this one, does not use it up."""
        with self._lock:
            until, whose = self._until.get(_digest(secret), (0.0, OPERATOR))
            if whose.uid != uid:
                return None
            self._until.pop(_digest(secret), None)
        return whose if until > now else None


def _digest(secret: str) -> str:
    """The key under which a secret is kept: how long it takes to find tells nothing about the secret."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
