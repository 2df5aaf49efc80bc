"""Checks the coordinator's token, and limits the rate of failed authentications. Used by `base.py`.

A caller with the right token is always served, even if another one at the same address guesses: on one machine every
caller is 127.0.0.1, and the limit must not lock the owner out. The token has 256 random bits, so the limit is there to
spare the log and the processor, not to make guessing hard.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict


def is_bearer(header: str | None, token: str) -> bool:
    """True if the Authorization header carries `token`; takes the same time for every wrong one."""
    fits = hmac.compare_digest(bearer(header).encode("utf-8", "replace"), token.encode())
    return fits and bool(token)


def bearer(header: str | None) -> str:
    """Return the token that an Authorization header carries; empty where it carries none."""
    scheme, _, given = (header or "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


class Failures:
    """Failed authentications by peer address, in windows of `window_s`; remembers at most `peers`.

    Times are seconds of any steady clock.
    """

    def __init__(self, limit: int = 20, window_s: float = 10.0, peers: int = 1024) -> None:
        self.limit = limit
        self.window_s = window_s
        self.peers = peers
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()  # window's start, failures in it

    def add(self, peer: str, now: float) -> bool:
        """Count one more; True if the peer has now failed too often."""
        since, count = self._seen.pop(peer, (now, 0))
        if now - since >= self.window_s:
            since, count = now, 0
        self._seen[peer] = (since, count + 1)
        if len(self._seen) > self.peers:
            self._seen.popitem(last=False)
        return count + 1 > self.limit

    def too_many(self, peer: str, now: float) -> bool:
        """Return whether the peer has failed so often that one more failure is too many."""
        since, count = self._seen.get(peer, (now, 0))
        return now - since < self.window_s and count >= self.limit
