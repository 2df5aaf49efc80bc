"""Reads the rows of table `reservations`: GPUs that are kept for a user, and nodes that are drained for a time. Pure.

A row holds times as its user named them, in seconds since 1970. They follow the wall clock wherever that is set: a
reservation begins and ends when the clock says so, and nothing of what runs is lost by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from adaptive_scheduler.reservation import Reservation
from coordinator.model.records import Moment, number
from coordinator.model.tables import NodeRow, plain

TABLE = "reservations"

Rows = Iterable[Mapping[str, Any]]


def from_rows(rows: Rows, at: Moment) -> tuple[Reservation, ...]:
    """Return those that have not ended; a row that makes no sense is left out."""
    found = list[Reservation]()
    for row in rows:
        begins = number(row.get("from_ts"))
        ends = number(row.get("until_ts"))
        count = number(row.get("num_gpus"), 1)
        if begins is None or ends is None or count is None or ends <= max(begins, at.wall):
            continue
        user = row.get("user")
        whose = None if user is None else str(user)
        found.append(
            Reservation(
                str(row["_id"]), str(row.get("node")), int(count), at.from_epoch(begins), at.from_epoch(ends), whose
            )
        )
    return tuple(sorted(found, key=lambda one: one.id))


def is_maintenance(row: Mapping[str, Any]) -> bool:
    """Return whether a row drains its node rather than keeping GPUs for a user."""
    return row.get("user") is None


def with_windows(nodes: Mapping[str, NodeRow], rows: Rows, wall: float) -> Mapping[str, NodeRow]:
    """Return the documents of nodes, drained where that is planned for this time."""
    names = {
        str(row.get("node"))
        for row in rows
        if is_maintenance(row) and (number(row.get("from_ts")) or 0.0) <= wall < (number(row.get("until_ts")) or 0.0)
    }
    if not names & nodes.keys():
        return nodes
    drained = {name: {**plain(nodes[name]), "drained": True} for name in names & nodes.keys()}
    return {**nodes, **drained}
