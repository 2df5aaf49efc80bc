"""What the webhook is told of a pod that is being created: whether it is ours, and what is decided about its job.

Promises: queues are answered from memory; what is decided costs at most two reads of the store. A job that is
being moved or relaunched is answered with where it goes: Volcano makes the new pod before the old one is written off.
Made by `running.py`, called by `webhook.py` from its threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coordinator.core.records import JobRecord
from coordinator.errors import Transient
from coordinator.ports import Store
from launcher.admission.inject import Devices
from launcher.admission.webhook import Decided
from launcher.cluster import volcano_jobs
from launcher.cluster.job_spec import devices_of
from launcher.cluster.pods import Cluster as Shown
from launcher.names import DEVICES, INJECT


class Answers:
    """`shown` is what the watches show now."""

    def __init__(self, store: Store, shown: Callable[[], Shown]) -> None:
        self._store, self._shown = store, shown

    def queue(self, name: str) -> tuple[bool, Devices]:
        found = self._shown().queues.get(name)
        if found is None:  # we have just started: to let its pod pass would be to show it every GPU
            raise Transient(f"Queue {name} is not known to the launcher yet; this is asked again.")
        meta: Mapping[str, Any] = found.get("metadata") or {}
        recreate = (meta.get("annotations") or {}).get(DEVICES) == "recreate"
        return (meta.get("labels") or {}).get(INJECT) == "true", "recreate" if recreate else "shared"

    def decided(self, uid: str) -> Decided | None:
        doc = self._store.get("jobs", volcano_jobs.key(uid))
        if doc is None:
            return None
        record = JobRecord(doc)
        op = record.operation
        node = (op.node if op is not None and op.kind == "move" else None) or record.node
        gpu_ids = op.to if op is not None else record.gpu_ids
        gpus = self._store.list("gpus", {"node": node}) if node else []
        emulated = not any(not gpu.get("emulated") for gpu in gpus)
        mode = devices_of(doc) if record.launch else None  # a job that has not been launched follows its queue
        claim = doc.get("checkpoint_claim")
        return Decided(record.id, node or doc.get("pinned"), gpu_ids, emulated, mode, claim)
