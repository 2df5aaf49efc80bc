"""Offers the seats of one node: the plugin that hands them out, and the server that opens and closes GPUs to them.

Called by the node agent's service, which gives it the folders of the machine as they are mounted in its container.
"""

from __future__ import annotations

import threading
from pathlib import Path

from sidecar.resources.gpus import device_minors
from sidecar.resources.permit_server import PermitServer
from sidecar.resources.pod_filters import PodFilters
from sidecar.resources.seat_plugin import SeatPlugin

# Below the folder of the machine.
DEVICE_PLUGINS = "device-plugins"
POD_LOGS = "pod-logs"
POD_RESOURCES = "pod-resources/kubelet.sock"
CONTROL_GROUPS = "cgroup"


class Seats:
    """Serves from `start` to `stop`."""

    def __init__(self, machine: Path, by_cdi: bool, key: bytes, host: str, port: int) -> None:
        """`machine`: its folders. `key`: the agents'. `host`, `port`: where the coordinator calls. OSError if taken."""
        filters = PodFilters(machine / CONTROL_GROUPS, device_minors)
        self._plugin = SeatPlugin(
            machine / DEVICE_PLUGINS,
            machine / POD_LOGS,
            machine / POD_RESOURCES,
            filters,
            device_minors,
            by_cdi,
        )
        self._permits = PermitServer(key, filters, host, port)
        self._end = threading.Event()
        self._offering = threading.Thread(target=self._plugin.run, args=(self._end,), name="seats", daemon=True)

    @property
    def address(self) -> str:
        return self._permits.address

    def start(self) -> None:
        self._permits.start()
        self._offering.start()

    def stop(self) -> None:
        """Stop offering seats. Filters stay as they are."""
        self._end.set()
        self._offering.join()
        self._permits.stop()
