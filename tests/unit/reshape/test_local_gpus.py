"""`reshape up` on real GPUs: one with a problem is faulty at the coordinator until it has none."""

from __future__ import annotations

import threading

from coordinator.adapters.clock import SystemClock
from coordinator.stores.bootstrap import FoundNode
from coordinator.telemetry.node_reports import NodeReports
from reshape.services.local_gpus import watch_gpus
from sidecar.protocol import NodeGpu


def test_each_change_of_the_inventory_is_told_once() -> None:
    reports, end = NodeReports(SystemClock(), 5.0), threading.Event()
    good, bad = [NodeGpu("GPU-1", "H100")], [NodeGpu("GPU-1", "H100", healthy=False, problem="Xid 79")]
    seen, told = [good, good, bad, bad, good], list[list[NodeGpu]]()

    def look() -> list[NodeGpu]:
        if len(seen) == 1:
            end.set()
        return seen.pop(0)

    def changed() -> None:
        for name, report in reports.changed().items():
            assert (name, report.cores, report.memory) == ("here", 8.0, 1024)
            told.append(report.gpus)
            reports.written(name, report)

    watch_gpus(FoundNode("here", (), 8.0, 1024.0), reports, changed, 0.0, end, look)
    assert told == [good, bad, good]
    assert not seen
