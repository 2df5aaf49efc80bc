"""Shows GPUs, nodes, what the GPUs did and will do, and the policy that decides on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from coordinator.api import views
from coordinator.api.access import ANOTHER_USER, Access, UserService
from coordinator.forecasts.forecaster import Forecaster
from coordinator.model import states as s
from coordinator.model.records import GpuRecord, takes_work
from coordinator.model.tables import NodeRow
from coordinator.ports import Doc
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache
from coordinator.telemetry.ingest import Telemetry
from coordinator.telemetry.measured.other_load import held_by_others
from coordinator.telemetry.node_load import NodeLoad
from sidecar.protocol import GpuReading

View = dict[str, Any]

GPU_USER = ("job_id", "held_by", "worker_id")
NO_GPUS: View = {
    "gpu_type": None,
    "gpus": 0,
    "idle": 0,
    "kept": 0,
    "cores": None,
    "emulated": False,
    "heard": True,
    "schedulable": True,
    "drained": False,
}
"""A node before its GPUs are counted."""


class Fleet(UserService):
    """Thread-safe. All users see which GPUs are taken; by whom, only where others' jobs are not hidden."""

    def __init__(
        self,
        access: Access,
        cache: Cache,
        telemetry: Telemetry,
        loop: DecisionLoop,
        forecaster: Forecaster,
        users_of_idle_gpus: Callable[[], dict[str, list[str]]],
    ) -> None:
        """`users_of_idle_gpus` returns by node for which user each GPU is kept that no job has."""
        super().__init__(access)
        self._users_of_idle_gpus = users_of_idle_gpus
        self._cache = cache
        self._telemetry = telemetry
        self._loop = loop
        self._forecaster = forecaster

    def gpus(self) -> list[View]:
        """Return all GPUs, by node and index."""
        readings = {g.gpu_id: g for beat in self._telemetry.reports.all() for g in beat.gpus}
        stored = self._telemetry.batches.gpu_rows()
        ordered = sorted(self._cache.gpus().values(), key=lambda g: (g.node, g.doc.get("index") or 0, g.id))
        misfits = self._cache.invalid_fields("gpus")
        found = [_gpu_view(gpu, readings, stored, "; ".join(misfits.get(gpu.id, ()))) for gpu in ordered]
        kept = self._users_of_idle_gpus()
        for view in reversed(found) if kept else ():  # a reservation counts GPUs: the last idle ones stand for them
            if view["state"] == s.IDLE and kept.get(view["node"]):
                view["kept_for"] = kept[view["node"]].pop()
        return list(map(self._without_user, found))

    def _without_user(self, view: View) -> View:
        """Leave out who has a GPU, where that is another user whose jobs are not to be seen."""
        if self.access.sees_all:
            return view
        if view["kept_for"] not in (None, self._own_name):
            view = view | {"kept_for": ANOTHER_USER}
        names = {str(view[field]) for field in GPU_USER if view[field] is not None}
        return view if all(map(self.access.is_own, names)) else view | dict.fromkeys(GPU_USER)

    @property
    def _own_name(self) -> str | None:
        return None if self._caller is None else self._caller.name

    def nodes(self) -> list[View]:
        """Return all nodes by name, each with its GPUs counted, and its load."""
        nodes = {name: _node_view(name, doc) for name, doc in self._loop.nodes_now().items()}
        for gpu in self.gpus():
            node = nodes.setdefault(gpu["node"], {**NO_GPUS, "node": gpu["node"]})
            node["gpu_type"] = node["gpu_type"] or gpu["gpu_type"]
            node["gpus"] += 1
            node["idle"] += gpu["state"] == s.IDLE
            node["kept"] += gpu["kept_for"] is not None
            node["emulated"] = node["emulated"] or gpu["emulated"]
        node_loads = self._loop.node_loads
        return [
            {
                **nodes[name],
                **views.node_load_view(node_loads.get(name, NodeLoad()), self._telemetry.nodes.jobs_of(name)),
            }
            for name in sorted(nodes)
        ]

    def gpu_use(self) -> View:
        """Return what GPUs did in the last 24 hours."""
        return self._telemetry.gpu_use.day()

    def coming(self) -> list[tuple[str, str, float, float]]:
        """Return which job is predicted to hold which GPU: GPU, job, begin and end in seconds since 1970."""
        coming = self._forecaster.coming()
        return coming if self.access.sees_all else [one for one in coming if self.access.is_own(one[1])]

    def policy(self) -> View:
        """Return the systems that decide, how an operation is done, and the settings."""
        settings = self._loop.settings
        return {
            "systems": list(settings.systems),
            "reshape_by": self._loop.config.reshape_by,
            "settings": msgspec.to_builtins(settings),
        }


def _gpu_view(gpu: GpuRecord, readings: Mapping[str, GpuReading], stored: Mapping[str, Doc], misfit: str) -> View:
    is_held = gpu.held_by is not None
    reading = readings.get(gpu.id) if is_held else None
    kept = stored.get(gpu.id, {}) if is_held else {}
    view = views.gpu_view(gpu, reading, kept)
    return {**view, "problem": misfit or view["problem"]}


def _node_view(name: str, doc: NodeRow) -> View:
    """Return a node before its GPUs are counted. `doc`: its row."""
    return {
        **NO_GPUS,
        "node": name,
        "cores": doc.get("cores"),
        "heard": doc.get("heard") is not False,
        "schedulable": takes_work(doc),
        "drained": bool(doc.get("drained")),
        **views.others_view(held_by_others(doc)),
    }
