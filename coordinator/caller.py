"""The users of a shared `reshape up`: who calls, and what that user may do. Pure.

A job belongs to the uid that submitted it (`owner_uid`, which only the server writes); its `owner` is that user's name.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.errors import Rejected
from coordinator.model.records import JobRecord

FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class Caller:
    """A user of this machine, as its kernel or a login has shown."""

    uid: int
    name: str
    admin: bool
    others_seen: bool  # whether names and GPU counts of others' jobs are shown

    def owns(self, job: JobRecord) -> bool:
        """Return whether this user owns the job: by uid and name, as somebody else may get the uid some day."""
        return (job.doc.get("owner_uid"), job.doc.get("owner")) == (self.uid, self.name)

    def may_change(self, job: JobRecord) -> bool:
        """Return whether this user may change the job, and read all that there is of it."""
        return self.admin or self.owns(job)

    def sees(self, job: JobRecord) -> bool:
        """Return whether this user may know that there is this job."""
        return self.others_seen or self.may_change(job)

    def require(self, job: JobRecord) -> None:
        """Refuse what only the owner and administrators may do with a job."""
        if not self.may_change(job):
            raise Rejected(f"Job {job.id} belongs to another user: only its owner and administrators may.", FORBIDDEN)

    def require_admin(self, what: str) -> None:
        """Refuse what concerns all users. `what`: such as `close a node`."""
        if not self.admin:
            raise Rejected(f"Only root and members of the group reshape-admin may {what}.", FORBIDDEN)
