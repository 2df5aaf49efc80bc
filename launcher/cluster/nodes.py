"""Which nodes take pods: Ready and not cordoned (S10), written as `schedulable` into table `nodes`.

Promises: only documents that node agents' reports have made are touched, only this field, and only when it changes; a
node that the API server does not show takes none. Without the right to watch nodes nothing is written. Called by
`service.py` at each turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from coordinator.errors import Conflict
from coordinator.ports import Clock, Store
from launcher.cluster.api import Cluster
from launcher.cluster.mirror import Mirror

TABLE = "nodes"
LOOK_S = 5.0  # how often documents are compared though no node has changed: some may be new


class Nodes:
    """`start` begins its watch, `stop` ends it."""

    def __init__(self, store: Store, cluster: Cluster, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._mirror = Mirror(cluster, "Node", None, None, lambda: None)  # seen at the next turn: no hurry
        self.start, self.stop = self._mirror.start, self._mirror.stop
        self._written: dict[str, bool] | None = None
        self._look_at = 0.0

    def turn(self) -> None:
        if not self._mirror.in_step:
            return
        shown = {str(node["metadata"]["name"]): schedulable(node) for node in self._mirror.items().values()}
        if shown == self._written and self._clock.now() < self._look_at:
            return
        for doc in self._store.list(TABLE):
            takes = shown.get(str(doc["_id"]), False)
            if doc.get("agent") and bool(doc.get("schedulable", True)) != takes:
                with suppress(Conflict):  # forgotten meanwhile
                    self._store.update(TABLE, doc["_id"], {}, {"schedulable": takes})
        self._written, self._look_at = shown, self._clock.now() + LOOK_S


def schedulable(node: Mapping[str, Any]) -> bool:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
    return ready and not spec.get("unschedulable")
