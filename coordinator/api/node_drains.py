"""Drains nodes for administrators: no new work goes there, and jobs leave where they can."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from coordinator.api.access import Access, UserService
from coordinator.api.reservations import Reservations
from coordinator.errors import Conflict, Rejected
from coordinator.model import resumption
from coordinator.model import states as s
from coordinator.model.tables import NodeChanges
from coordinator.ports import Store
from coordinator.stores.cache import Cache

log = logging.getLogger(__name__)

View = dict[str, Any]


class NodeDrains(UserService):
    """Thread-safe."""

    def __init__(
        self, access: Access, store: Store, cache: Cache, reservations: Reservations, read_store: Callable[[], None]
    ) -> None:
        """`read_store` makes the loop read at once."""
        super().__init__(access)
        self._store = store
        self._cache = cache
        self._reservations = reservations
        self._read_store = read_store

    def drain(self, node: str, drained: bool) -> View:
        """Close a node to new work and let its jobs leave, or open it again, which ends drains that are planned.

        `jobs`: those that have something of it now, each with the reason why it stays to its end (`stays`), or null.
        """
        self.access.require_admin("drain nodes")
        changes: NodeChanges = {"drained": drained}
        try:
            self._store.update("nodes", node, {}, changes)
        except Conflict:
            raise Rejected(f"There is no node {node!r}; `reshape nodes` lists all.", 404) from None
        log.info("%s %s node %s", self.access.who, "drains" if drained else "gave work back to", node)
        self._read_store()
        there = {gpu.held_by for gpu in self._cache.gpus().values() if gpu.node == node}
        jobs = [j for j in self._cache.jobs().values() if j.state in s.LAUNCHED and (j.id in there or j.node == node)]
        views = [
            {"job_id": job.raw_id, "num_gpus": len(job.gpu_ids), "stays": resumption.rigidity_reason(job) or None}
            for job in sorted(jobs, key=lambda j: (j.submit_ts, j.id))
        ]
        if not drained:
            self._reservations.end_drains(node)
        self.access.note_change("drain" if drained else "undrain", node)
        return {"node": node, "drained": drained, "jobs": views}
