"""Watches what other processes of the machine use on which `reshape up` runs: no job can have that.

Promise: the coordinator and all that launches have started count as ours, whatever they use. Called by
`up`, in a thread of its own; not for emulated nodes, whose cores are not the machine's.
"""

from __future__ import annotations

import logging
import os
import threading

from coordinator.ports import Clock
from coordinator.stores.bootstrap import FoundNode
from coordinator.telemetry.ingest import Telemetry
from sidecar.resources.machine import MachineMeter

log = logging.getLogger(__name__)


def watch_load(
    node: FoundNode,
    telemetry: Telemetry,
    clock: Clock,
    heartbeat_s: float,
    end: threading.Event,
    meter: MachineMeter | None = None,
) -> None:
    """Measure until `end`, once per heartbeat interval."""
    meter = meter or MachineMeter()
    while not end.is_set():
        try:
            shims = [beat.shim.shim_pid for beat in telemetry.reports.all()]
            if found := meter.sample([os.getpid(), *filter(None, shims)], clock.now()):
                telemetry.nodes.others.add_measurement(
                    node.name,
                    found.others_cores,
                    found.others_memory,
                    "processes",
                    {"cpu_use": found.cpu_use, "memory_use": found.memory_use},
                )
        except Exception:  # what it measured last stops to count by itself
            log.exception("the load of this machine is not known")
        end.wait(heartbeat_s)
