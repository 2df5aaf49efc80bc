"""Writes what agents report of nodes and GPUs into the store: new inventories, faults, and nodes that are gone.

Each write is a compare-and-set; what changed meanwhile is written at the loop's next turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from coordinator.errors import Conflict
from coordinator.model.tables import NodeRow
from coordinator.ports import Store
from coordinator.stores.bootstrap import forget_node, judge_gpu, register_node
from coordinator.stores.cache import Cache
from coordinator.telemetry.ingest import Telemetry
from coordinator.telemetry.node_reports import found_node

log = logging.getLogger(__name__)


class InventoryWriter:
    """Used by the thread of the decision loop."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        telemetry: Telemetry,
        note_write: Callable[[], None],
        call_again: Callable[[], None],
    ) -> None:
        """`note_write` is called after each write, `call_again` after one that lost against another."""
        self._store = store
        self._cache = cache
        self._telemetry = telemetry
        self._note_write = note_write
        self._call_again = call_again

    def register_nodes(self) -> None:
        """Write inventories reported by node agents that are not in the store, or not any more."""
        for name, report in self._telemetry.nodes.changed().items():
            try:
                register_node(self._store, found_node(name, report))
            except Conflict:  # a GPU was changed meanwhile
                self._call_again()
                continue
            self._telemetry.nodes.written(name, report)
            self._note_write()

    def mark_faulty_gpus(self) -> None:
        """Write which GPUs have fallen sick under a training, so that nothing more goes there, or are well again."""
        for gpu_id, problem in self._telemetry.gpu_faults.changed().items():
            try:
                judge_gpu(self._store, gpu_id, problem)
            except Conflict:  # changed meanwhile
                self._call_again()
                continue
            log.warning("GPU %s %s", gpu_id, f"is faulty: {problem}" if problem else "works again")
            self._telemetry.gpu_faults.written(gpu_id, problem)
            self._note_write()

    def forget_nodes(self, nodes: Mapping[str, NodeRow]) -> None:
        """Delete nodes that are gone, so that a cluster that scales itself does not collect them."""
        for name in self._telemetry.nodes.gone(nodes):
            if any(gpu.node == name and (gpu.job or gpu.held_by) for gpu in self._cache.gpus().values()):
                continue
            with suppress(Conflict):  # changed meanwhile
                forget_node(self._store, name)
                self._telemetry.nodes.forget_node(name)
            self._note_write()
