"""An API server that knows some tokens and some rights, in place of `launcher.cluster.reviews.KubernetesReviews`."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field

from coordinator.caller import OPERATE, ResourceRight
from coordinator.errors import Transient
from coordinator.http.cluster_tenants import RefusedToken, ReviewedUser
from launcher.admission.inject import Doc

VERBS = {"get", "create", "update", "delete"}


def jwt(audience: str) -> str:
    """A token that says whom it is for."""
    claims = base64.urlsafe_b64encode(json.dumps({"aud": [audience]}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2lnbmF0dXJl"


@dataclass
class ClusterReviews:
    """`users` by token, `verbs` on Volcano Jobs by user and namespace."""

    users: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    verbs: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    operators: set[str] = field(default_factory=set)
    away: bool = False
    asked: list[tuple[str, ...]] = field(default_factory=list)
    audiences: list[str | None] = field(default_factory=list)

    def user_of(self, token: str, audience: str | None) -> ReviewedUser | RefusedToken:
        self._answers("token", token)
        self.audiences.append(audience)
        if token in self.users:
            return ReviewedUser(self.users[token], "uid", ("system:authenticated",))
        return RefusedToken(self.refused.get(token, "invalid bearer token"))

    def allows(self, user: ReviewedUser, right: ResourceRight, namespace: str) -> bool:
        self._answers("right", user.name, str(right), namespace)
        if right == OPERATE:
            return user.name in self.operators and not namespace
        return right.verb in self.verbs.get((user.name, namespace), set())

    def _answers(self, *asked: str) -> None:
        if self.away:
            raise Transient("the API server does not answer")
        self.asked.append(asked)


class CreatedReviews:
    """The API server itself: keeps what it is asked, and answers each with `status`."""

    def __init__(self, status: Doc) -> None:
        self.status = status
        self.created: list[Doc] = []

    def create(self, doc: Doc) -> Doc:
        self.created.append(doc)
        return {**doc, "status": self.status}
