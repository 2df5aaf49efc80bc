"""Lets a browser in: a one-time link, asked for with the API's token, is exchanged for a session cookie.

A session is a signed time of its end, so it holds over restarts of the coordinator and at each replica that has the
same token, and nothing of it is stored. Scripts cannot read the cookie, and no other site can send it; forms carry a
second proof (`Sessions.proof`), as pages at other ports of the same machine count as the same site.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict

SESSION_S = 12 * 3600.0
LINK_S = 300.0
MOST_LINKS_OF_ONE = 10  # of one user of a shared machine
USERS_WORDS = 4  # of a cookie that is for one user: its end, a random part, the uid, the signature
MOST_LINKS = 100  # not used yet; the oldest are dropped first


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


class OneTimeLinks:
    """Secrets of links that let one browser in once. Thread-safe. Times are seconds of any steady clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: OrderedDict[str, tuple[float, int | None]] = OrderedDict()

    def make(self, now: float, uid: int | None = None) -> str:
        """Return a new secret. `uid`: of the only user who may use it, on a shared machine."""
        secret = secrets.token_urlsafe(24)
        with self._lock:
            own = [key for key, (_, whose) in self._until.items() if whose == uid]
            if uid is not None and len(own) >= MOST_LINKS_OF_ONE:  # so that nobody's push out those of others
                del self._until[own[0]]
            self._until[_digest(secret)] = now + LINK_S, uid
            while len(self._until) > MOST_LINKS:
                self._until.popitem(last=False)
        return secret

    def take(self, secret: str, now: float, uid: int | None = None) -> bool:
        """Return True once for a secret that was just made for this user. Another user does not use it up."""
        with self._lock:
            until, whose = self._until.get(_digest(secret), (0.0, None))
            if whose != uid:
                return False
            self._until.pop(_digest(secret), None)
        return until > now


def _digest(secret: str) -> str:
    """The key under which a secret is kept: how long it takes to find tells nothing about the secret."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
