"""Asks the API server whose a token is and what its user may do: implements `coordinator.http.cluster_tenants.Reviews`.

Needs the rights of the ClusterRole `system:auth-delegator`. Used by `reshape coordinator`; thread-safe.
"""

from __future__ import annotations

from typing import Any, Protocol

from coordinator.caller import ResourceRight
from coordinator.errors import Fatal, Rejected, Transient
from coordinator.http.cluster_tenants import RefusedToken, ReviewedUser

Doc = dict[str, Any]


class CreatesReviews(Protocol):
    """The call of `launcher.cluster.api.KubernetesApi` that is used."""

    def create(self, doc: Doc) -> Doc: ...


class KubernetesReviews:
    """Each question is one call of the API server."""

    def __init__(self, cluster: CreatesReviews) -> None:
        self._cluster = cluster

    def user_of(self, token: str, audience: str | None) -> ReviewedUser | RefusedToken:
        spec = {"token": token, **({"audiences": [audience]} if audience is not None else {})}
        status = self._status_of("authentication.k8s.io/v1", "TokenReview", spec)
        user = status.get("user") or {}
        if not status.get("authenticated") or not user.get("username"):
            return RefusedToken(str(status.get("error") or ""))
        if audience is not None and audience not in (status.get("audiences") or []):
            return RefusedToken("")  # of a server that does not know audiences
        extra = {str(key): tuple(map(str, values)) for key, values in (user.get("extra") or {}).items()}
        groups = tuple(map(str, user.get("groups") or []))
        return ReviewedUser(str(user["username"]), str(user.get("uid") or ""), groups, tuple(sorted(extra.items())))

    def allows(self, user: ReviewedUser, right: ResourceRight, namespace: str) -> bool:
        asked = {name: value for name, value in right._asdict().items() if value}
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra},
            "resourceAttributes": {**asked, "group": right.group, "namespace": namespace},
        }
        status = self._status_of("authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return bool(status.get("allowed")) and not status.get("denied")

    def _status_of(self, version: str, kind: str, spec: Doc) -> Doc:
        try:
            answer = self._cluster.create({"apiVersion": version, "kind": kind, "metadata": {}, "spec": spec})
        except (Fatal, Rejected) as error:
            raise Transient(
                f"It is not known who calls, as the API server answers no {kind}: {error}. "
                "Is the ClusterRole system:auth-delegator bound to the coordinator's service account?"
            ) from None
        status: Doc = answer.get("status") or {}
        return status
