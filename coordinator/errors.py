"""The errors of the coordinator. Library exceptions never leave their adapter: they become one of these.

ReshapeError
  Rejected    the caller's fault: shown to the caller verbatim
  Conflict    another writer was first: read again
  Transient   an external service does not answer: try again later
  Fatal       this job cannot go on: stop it and say why
"""

from __future__ import annotations


class ReshapeError(Exception):
    """Base class; the first argument is a sentence for users."""


class Rejected(ReshapeError):
    """The caller's fault. `status` is the HTTP status that fits, `problems` each thing that is wrong."""

    def __init__(self, sentence: str, status: int = 400, problems: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.status = status
        self.problems = problems


class Unauthorized(ReshapeError):
    """Unknown caller, or another user's job: always the same answer."""


class Conflict(ReshapeError):
    """A compare-and-set was lost, or the document exists already."""


class Transient(ReshapeError):
    """The same call may succeed later."""


class Fatal(ReshapeError):
    """Trying again will not help."""
