"""Takes rows of GPUs that their nodes do not have out of use: somebody has written them by hand.

Promises: no job is given a GPU that its node does not list, or of a node that is not there. A GPU that a job has is
left alone. The row says why, and is used again once the node reports that GPU. Called by the loop after each reading.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.records import GpuRecord
from coordinator.model.tables import GpuChanges, NodeRow
from coordinator.stores.cache import Cache
from coordinator.telemetry.changed_jobs import changed

log = logging.getLogger(__name__)


class UnlistedGpus:
    """Looks at the rows that have changed, and at all of them after a change of nodes."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._gpus: Mapping[str, GpuRecord] = {}
        self._nodes: Mapping[str, NodeRow] = {}

    def retire(self, nodes: Mapping[str, NodeRow]) -> None:
        """Mark each such GPU as faulty and retired. `nodes`: all rows of nodes, none of which may change any more."""
        gpus = self._cache.gpus()
        new = changed(self._gpus, gpus) if nodes is self._nodes else list(gpus)
        self._gpus = gpus
        self._nodes = nodes
        for gpu in map(gpus.__getitem__, new):
            if gpu.faulty or gpu.job is not None or gpu.held_by is not None or not (why := _problem(gpu, nodes)):
                continue
            with suppress(Conflict):  # changed meanwhile: looked at again
                unused: GpuChanges = {"job_id": None, "held_by": None}
                self._cache.write_gpu(gpu, unused, {"state": s.FAULTY, "retired": True, "problem": why})
                log.warning("GPU %s is not used: %s", gpu.id, why)


def _problem(gpu: GpuRecord, nodes: Mapping[str, NodeRow]) -> str:
    """Return why there is no such GPU; empty if there is, or if nobody has said which GPUs there are."""
    if gpu.node not in nodes:
        registered = any(node.get("gpus") is not None for node in nodes.values())
        return f"there is no node {gpu.node}: delete this row, or add the node" if registered else ""
    listed = nodes[gpu.node].get("gpus")
    if not isinstance(listed, list) or gpu.id in map(str, listed):
        return ""
    return f"node {gpu.node} has no such GPU: delete this row"
