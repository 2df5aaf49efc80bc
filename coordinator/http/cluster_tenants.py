"""Knows who calls the coordinator of a cluster, and what each may do, by the word of the API server.

Promises: a caller is whom a TokenReview names, and has the rights that a SubjectAccessReview grants; what is not known
is refused. Both answers are kept for `LASTS_S`, so a token that was revoked or a right that was taken away counts so
long at most, and at most `MOST` of each. Used by `base.py`; thread-safe.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, Protocol, TypeVar

from coordinator.caller import OPERATE, ResourceRight, Tenant
from coordinator.errors import Unauthorized
from coordinator.model.owner_names import namespace_of_user, owner_of_user

K = TypeVar("K")
V = TypeVar("V")

LASTS_S = 15.0
TRUSTED_S = 3600.0
MOST = 4096
AT_ONCE = 4  # reviews, so that a slow API server holds up nobody else
LONGEST_TOKEN = 16 * 1024
AUDIENCE = "volcano-reshape"
"""For tokens that are good for nothing but this API; those for the API server itself are taken, too."""
HELP = f"`kubectl create token ACCOUNT --namespace NAMESPACE --audience {AUDIENCE}` makes one."


class ReviewedUser(NamedTuple):
    """The user whom a token is of, as the API server knows it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class RefusedToken(NamedTuple):
    """Says why the API server accepts no token."""

    why: str


class Reviews(Protocol):
    """The questions that the API server answers. Both raise `Transient` where it does not."""

    def user_of(self, token: str, audience: str | None) -> ReviewedUser | RefusedToken:
        """Return whose token this is. `audience`: whom it must be for; None: the API server itself."""
        ...

    def allows(self, user: ReviewedUser, right: ResourceRight, namespace: str) -> bool:
        """Return whether the user has this right in a namespace; in all of them if that is empty."""
        ...


class ShortMemory(Generic[K, V]):
    """Keeps the newest answers, each for `lasts_s`. Thread-safe. Times are seconds of any steady clock."""

    def __init__(self, now: Callable[[], float], most: int = MOST, lasts_s: float = LASTS_S) -> None:
        self._now = now
        self._most = most
        self._lasts_s = lasts_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the answer to this question; None if it must be asked again."""
        with self._lock:
            until, found = self._kept.get(key, (0.0, None))
        return found if self._now() < until else None

    def keep(self, key: K, answer: V) -> None:
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = self._now() + self._lasts_s, answer
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)


class ClusterTenants:
    """Tells the handlers of an application who calls by a token of the cluster."""

    def __init__(
        self,
        reviews: Reviews,
        others_seen: bool,
        default_namespace: str,
        now: Callable[[], float],
    ) -> None:
        """`default_namespace`: of jobs whose documents name none."""
        self.threads = ThreadPoolExecutor(AT_ONCE, "http-tenants")
        self._reviews = reviews
        self._others_seen = others_seen
        self._default_namespace = default_namespace
        self._callers: ShortMemory[str, Tenant | RefusedToken] = ShortMemory(now)
        self._accepted: ShortMemory[str, bool] = ShortMemory(now, lasts_s=TRUSTED_S)
        self._rights: ShortMemory[tuple[ReviewedUser, ResourceRight, str], bool] = ShortMemory(now)

    def known(self, token: str) -> Tenant | None:
        """Return whose token this is, if that was asked a moment ago. `Unauthorized` if it was refused then."""
        return _is_accepted(self._callers.get(_hash_of_token(token)))

    def was_accepted(self, token: str) -> bool:
        """Return whether this token was its user's in the last hour: it is asked about again, whoever guesses."""
        return bool(self._accepted.get(_hash_of_token(token)))

    def caller_of(self, token: str) -> Tenant | None:
        """Ask whose token this is. `Unauthorized` with the reason if the cluster does not accept it."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        found = self._reviews.user_of(token, AUDIENCE if AUDIENCE in audiences(token) else None)
        caller = found if isinstance(found, RefusedToken) else self._tenant_of(found)
        self._callers.keep(_hash_of_token(token), caller)
        self._accepted.keep(_hash_of_token(token), isinstance(caller, Tenant))
        return _is_accepted(caller)

    def _tenant_of(self, user: ReviewedUser) -> Tenant:
        def allows(right: ResourceRight, namespace: str) -> bool:
            return self._is_allowed(user, right, namespace)

        return Tenant(
            name=owner_of_user(user.name),
            admin=allows(OPERATE, ""),
            others_seen=self._others_seen,
            namespace=namespace_of_user(user.name),
            default_namespace=self._default_namespace,
            allows=allows,
        )

    def _is_allowed(self, user: ReviewedUser, right: ResourceRight, namespace: str) -> bool:
        asked = user, right, namespace
        known = self._rights.get(asked)
        if known is None:
            known = self._reviews.allows(user, right, namespace)
            self._rights.keep(asked, known)
        return known


def audiences(token: str) -> tuple[str, ...]:
    """Return whom a token says it is for; nothing for one that is no JWT. The API server checks whether it is true."""
    parts = token.split(".")
    if len(parts) != 3:
        return ()
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return ()
    named = claims.get("aud") if isinstance(claims, dict) else None
    found = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    return tuple(one for one in found if isinstance(one, str))


def _is_accepted(found: Tenant | RefusedToken | None) -> Tenant | None:
    if isinstance(found, RefusedToken):
        raise Unauthorized(refusal_sentence(found.why))
    return found


def refusal_sentence(why: str) -> str:
    """Return why a token is not accepted, for its user. `why`: the API server's words."""
    if "expired" in why:
        return f"This token has expired: make a new one. {HELP}"
    if any(word in why for word in ("invalidated", "deleted", "not found", "no longer")):
        return f"This token is no longer valid, as what it was bound to is gone: make a new one. {HELP}"
    return f"This cluster does not know this token: it may be of another cluster, or for somebody else. {HELP}"


def _hash_of_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
