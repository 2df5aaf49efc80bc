"""Puts together whose rights are in force: those of `shares.yaml`, and of Volcano's queues that it does not name.

On a cluster the launcher copies Volcano's Queue objects into the table `queues`. `capability` is a queue's limit,
`deserved` and `guarantee` what it always gets back. Called by the decision loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from adaptive_scheduler.shares import DEFAULT_QUEUE, QueueShare, Shares
from coordinator.model.records import number, whole
from coordinator.model.tables import QueueRow

ROOT = "root"  # above all queues of Volcano's plugin `capacity`: no job is in it


class QueueShares:
    """Returns the same object as long as nothing has changed."""

    def __init__(self, default_queue: str) -> None:
        """`default_queue`: in which jobs are that name none."""
        self._default_queue = default_queue or DEFAULT_QUEUE
        self._read: tuple[Shares, Mapping[str, QueueRow]] | None = None
        self.shares = Shares()
        """The rights in force."""
        self.of_volcano: frozenset[str] = frozenset()
        """The queues of which Volcano's object says what they may have."""

    def update(self, of_file: Shares, rows: Mapping[str, QueueRow]) -> Shares:
        """Return the rights in force. `rows`: Volcano's queues by name, as the launcher has copied them."""
        if self._read is None or self._read[0] is not of_file or self._read[1] is not rows:
            self._read = of_file, rows
            found = {name: queue_share(row) for name, row in rows.items() if _says_shares(name, row)}
            merged = {**found, **of_file.queues}
            self.of_volcano = frozenset(found.keys() - of_file.queues.keys())
            shares = replace(of_file, queues=merged, default_queue=self._default_queue)
            if shares != self.shares:
                self.shares = shares
        return self.shares


def queue_share(row: QueueRow) -> QueueShare:
    """Return what a row of the table `queues` says."""
    limit = row.get("limit")
    guaranteed = row.get("guaranteed")
    return QueueShare(
        weight=number(row.get("weight")) or 1.0,
        guaranteed=guaranteed if whole(guaranteed, 0) else 0,
        limit=limit if whole(limit, 0) else None,
        reclaimable=row.get("reclaimable") is not False,
        parent=str(row.get("parent") or ""),
        makespan_weight=number(row.get("makespan_weight")),
    )


def _says_shares(name: str, row: QueueRow) -> bool:
    """Return whether a row says what its queue may have: those of an older launcher do not."""
    return name != ROOT and row.get("weight") is not None
