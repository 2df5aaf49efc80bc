"""Watches the real GPUs of the machine on which `reshape up` runs, as a node agent does on a cluster.

Promise: a GPU that can no longer be read, or of which the driver reports an error, is faulty at the coordinator within
a heartbeat and given to no job; if the driver hangs, this machine counts as silent and starts nothing new. Called by
`up`, in a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from coordinator.stores.bootstrap import FoundNode
from coordinator.telemetry.node_reports import NodeReports
from sidecar.protocol import NodeGpu, NodeReport
from sidecar.resources.agent import NvmlInventory

log = logging.getLogger(__name__)


def watch_gpus(
    node: FoundNode, reports: NodeReports, changed: Callable[[], None], heartbeat_s: float, end: threading.Event,
    look: Callable[[], list[NodeGpu]] | None = None,
) -> None:  # fmt: skip
    """Report the inventory of `node` until `end`. `changed` is called when it is not the one that was written last."""
    look, seq = look or NvmlInventory(), 0
    while not end.is_set():
        seq += 1
        report = NodeReport(boot="", seq=seq, gpus=look(), cores=node.cores, memory=int(node.memory))
        if reports.take(node.name, report):
            changed()
        end.wait(heartbeat_s)
