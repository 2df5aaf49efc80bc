"""The users that a coordinator knows apart: who calls, and what that user may do. Pure but for `Tenant.allows`.

On a shared machine a job belongs to the uid that submitted it (`owner_uid`, which only the server writes); its `owner`
is that user's name. On a cluster the rights are those of the API server, by namespace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from coordinator.errors import Rejected
from coordinator.model.pod_fields import LABEL
from coordinator.model.records import JobRecord

FORBIDDEN = 403

JobRight = Literal["read", "read_output", "submit", "change", "end"]


@dataclass(frozen=True, slots=True)
class Caller(ABC):
    """A user who calls, as the kernel of a machine, a login or the API server of a cluster has shown."""

    name: str
    admin: bool
    others_seen: bool  # whether names and GPU counts of others' jobs are shown

    @property
    def uid(self) -> int | None:
        """Return the user's uid on a shared machine."""
        return None

    @abstractmethod
    def has(self, right: JobRight, job: JobRecord) -> bool:
        """Return whether this user has that right to the job."""

    @abstractmethod
    def may_rerun(self, job: JobRecord) -> bool:
        """Return whether this user may submit once more what was submitted as this job."""

    def rerun_refusal(self, job: JobRecord) -> str:
        """Return a sentence that tells who may do that."""
        return self.refusal("submit", job)

    @abstractmethod
    def refusal(self, right: JobRight, job: JobRecord) -> str:
        """Return a sentence that tells somebody without that right who has it."""

    def sees(self, job: JobRecord) -> bool:
        """Return whether this user may know that there is this job."""
        return self.others_seen or self.has("read", job)

    def require(self, right: JobRight, job: JobRecord) -> None:
        """Refuse what this user has no right to."""
        if not self.has(right, job):
            raise Rejected(self.refusal(right, job), FORBIDDEN)

    def require_admin(self, what: str) -> None:
        """Refuse what concerns all users. `what`: such as `close a node`."""
        if not self.admin:
            raise Rejected(self.refusal_for_all(what), FORBIDDEN)

    @abstractmethod
    def refusal_for_all(self, what: str) -> str:
        """Return a sentence that tells who may do something that concerns all users."""

    @abstractmethod
    def reads_row(self, row: Mapping[str, Any]) -> bool:
        """Return whether this user may read all of an event, or of another row that says whose it is."""

    @abstractmethod
    def event_marks(self, job: JobRecord | None) -> dict[str, Any]:
        """Return the fields by which `reads_row` knows what this user did. `job`: which it was done to, if any."""


@dataclass(frozen=True, slots=True)
class UnixUser(Caller):
    """A user of a shared machine."""

    unix_id: int

    @property
    def uid(self) -> int:
        return self.unix_id

    def owns(self, job: JobRecord) -> bool:
        """Return whether this user owns the job: by uid and name, as somebody else may get the uid some day."""
        return (job.doc.get("owner_uid"), job.doc.get("owner")) == (self.unix_id, self.name)

    def has(self, right: JobRight, job: JobRecord) -> bool:
        return self.admin or self.owns(job)

    def may_rerun(self, job: JobRecord) -> bool:
        return self.owns(job)  # it would run as this user

    def rerun_refusal(self, job: JobRecord) -> str:
        return f"Job {job.id} belongs to another user, who alone may run it once more."

    def refusal(self, right: JobRight, job: JobRecord) -> str:
        return f"Job {job.id} belongs to another user: only its owner and administrators may."

    def refusal_for_all(self, what: str) -> str:
        return f"Only root and members of the group reshape-admin may {what}."

    def reads_row(self, row: Mapping[str, Any]) -> bool:
        return row.get("owner_uid") == self.unix_id

    def event_marks(self, job: JobRecord | None) -> dict[str, Any]:
        return {"owner_uid": self.unix_id}


class ResourceRight(NamedTuple):
    """A verb on a namespaced resource of the API server."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        """The same as words of kubectl, such as `delete jobs.batch.volcano.sh`."""
        name = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {name}{f'/{self.subresource}' if self.subresource else ''}"


CLUSTER_RIGHTS: dict[JobRight, ResourceRight] = {
    "read": ResourceRight("get", "batch.volcano.sh", "jobs"),
    "read_output": ResourceRight("get", "", "pods", "log"),
    "submit": ResourceRight("create", "batch.volcano.sh", "jobs"),
    "change": ResourceRight("update", "batch.volcano.sh", "jobs"),
    "end": ResourceRight("delete", "batch.volcano.sh", "jobs"),
}
"""Whoever has these rights in a namespace can do the same there with kubectl: this API gives nobody more."""

OPERATE = ResourceRight("operate", "volcano-reshape.io", "coordinators")
"""Right, in all namespaces, of those who may do everything. There is no such resource, only rules about it."""


RESERVE = ResourceRight("create", "volcano-reshape.io", "reservations")
"""Right, in all namespaces, of those who may reserve GPUs for their own jobs, up to their part. There is no such
resource either."""


@dataclass(frozen=True, slots=True)
class Tenant(Caller):
    """A user or service account of a cluster."""

    namespace: str
    """Namespace of its jobs that name none: that of a service account; empty for others."""
    default_namespace: str
    """Namespace in which jobs run whose documents name none."""
    allows: Callable[[ResourceRight, str], bool] = field(compare=False, repr=False)
    """Asks the API server whether the user has a right in a namespace. Raises `Transient` where it does not answer."""

    def has(self, right: JobRight, job: JobRecord) -> bool:
        return self.admin or self.allows(CLUSTER_RIGHTS[right], self.namespace_of(job))

    def may_rerun(self, job: JobRecord) -> bool:
        return self.has("submit", job)

    def refusal(self, right: JobRight, job: JobRecord) -> str:
        return self._refusal_in(right, self.namespace_of(job))

    def _refusal_in(self, right: JobRight, namespace: str) -> str:
        needed = CLUSTER_RIGHTS[right]
        return (
            f"{self.name} may not {needed} in namespace {namespace}, which this needs: ask who administers that "
            f"namespace to bind the ClusterRole reshape-tenant there, or another one with that right."
        )

    def refusal_for_all(self, what: str) -> str:
        return (
            f"{self.name} may not {what}: that is for those to whom the ClusterRole reshape-operator is bound, and for "
            "the coordinator's own token."
        )

    def require_reserving(self) -> None:
        """Refuse to reserve GPUs whoever has no right to: they are taken from the jobs of all namespaces."""
        if not (self.admin or self.allows(RESERVE, "")):
            raise Rejected(
                f"{self.name} may not {RESERVE} in all namespaces, which this needs: ask who administers the cluster "
                "for a ClusterRoleBinding to the ClusterRole reshape-reserver.",
                FORBIDDEN,
            )

    def namespace_of(self, job: JobRecord) -> str:
        """Return the namespace in which the job runs."""
        return str(job.doc.get("namespace") or self.default_namespace)

    def place(self, given: object) -> object:
        """Return the namespace of a new job that names `given`, or none. `Rejected` if the user may not submit there.

        What cannot be a namespace is returned as it is, for intake to refuse.
        """
        if given is None and not self.namespace:
            raise Rejected("Say in which namespace the job is to run (`namespace`): a user is of none.")
        namespace = self.namespace if given is None else given
        is_name = isinstance(namespace, str) and LABEL.fullmatch(namespace)
        if is_name and not (self.admin or self.allows(CLUSTER_RIGHTS["submit"], str(namespace))):
            raise Rejected(self._refusal_in("submit", str(namespace)), FORBIDDEN)
        return namespace

    def reads_row(self, row: Mapping[str, Any]) -> bool:
        namespace = row.get("namespace")
        return isinstance(namespace, str) and self.allows(CLUSTER_RIGHTS["read"], namespace)

    def event_marks(self, job: JobRecord | None) -> dict[str, Any]:
        return {} if job is None else {"namespace": self.namespace_of(job)}
