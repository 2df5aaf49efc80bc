"""Passes word from the launcher to coordinators: of which trainings a store has lost the records.

One row of table `terms`, which the launcher writes when it begins to act: from then on the store holds a record of
each training that lives. The coordinator that acts waits for it on an empty store, and then for the sidecars of the
trainings that were written back, since only they know on which GPUs they train by now.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.errors import Conflict
from coordinator.ports import Store

ROW = "lost-trainings"


def tell_lost_trainings(store: Store, jobs: Sequence[str]) -> None:
    """Write that the launcher has compared the store with what runs, and the ids of the jobs that it wrote back."""
    found = store.get("terms", ROW)
    if found is not None and not jobs:
        return
    waiting = [*((found or {}).get("jobs") or []), *jobs]
    store.put("terms", {"_id": ROW, "version": int((found or {}).get("version") or 0) + 1, "jobs": waiting})


def lost_trainings(store: Store) -> list[str] | None:
    """Return the ids of jobs that were written back and not taken yet; None if no launcher has compared the store."""
    found = store.get("terms", ROW)
    return None if found is None else [str(job) for job in found.get("jobs") or []]


def take_lost_trainings(store: Store, jobs: Sequence[str]) -> None:
    """Write that these jobs are in order, unless the launcher has added others meanwhile."""
    found = store.get("terms", ROW)
    if found is None or list(found.get("jobs") or []) != list(jobs):
        return
    try:
        store.update("terms", ROW, {"version": found.get("version")}, {"jobs": []})
    except Conflict:
        return
