"""Defines reservations: GPUs of one node that are kept for a time for the jobs of one user, or for nobody. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs that are kept from `from_s` until `until_s`, on the clock of the snapshot's other times."""

    id: str
    node: str
    num_gpus: int
    from_s: float
    until_s: float
    user: str | None = None  # whose jobs may use them; None: nobody's, for the maintenance of the node

    @property
    def whose(self) -> str:
        """Return words for what they are kept for."""
        return "maintenance" if self.user is None else self.user or "jobs without an owner"
