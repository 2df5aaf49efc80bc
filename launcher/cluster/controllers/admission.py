"""Looks up for the webhook whether a new pod is managed, and which node and GPUs its job was given.

Promises: queues are read from memory; a decision costs at most two reads of the store. For a job that is being moved
or relaunched the answer is its new place: Volcano makes the new pod before the old one is written off. Made by
`process.py`, called by `webhook.py` from its threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coordinator.errors import Transient
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow
from coordinator.ports import Store
from launcher.admission.inject import Devices
from launcher.admission.webhook import PodDecision
from launcher.cluster.controllers import volcano_job_document
from launcher.cluster.pods.job_spec import devices_of
from launcher.names import DEVICES, INJECT

Doc = dict[str, Any]


class PodDecisionLookup:
    """Implements `webhook.PodDecisions`. `queues`: returns Volcano's queues by name, as they are now; None where there
    is no Volcano."""

    def __init__(self, store: Store, queues: Callable[[], Mapping[str, Doc] | None]) -> None:
        self._store = store
        self._queues = queues

    def queue(self, name: str) -> tuple[bool, Devices]:
        queues = self._queues()
        if queues is None:
            return False, "shared"
        found = queues.get(name)
        if found is None:  # just started: a pod that passes uninjected would see every GPU
            raise Transient(f"Queue {name} is not known to the launcher yet; this is asked again.")
        meta: Mapping[str, Any] = found.get("metadata") or {}
        recreate = (meta.get("annotations") or {}).get(DEVICES) == "recreate"
        return (meta.get("labels") or {}).get(INJECT) == "true", "recreate" if recreate else "shared"

    def decided(self, uid: str, launch: str | None = None, member: int = 0) -> PodDecision | None:
        doc = self._store.get("jobs", volcano_job_document.job_key(uid)) if launch is None else self._launched(launch)
        if doc is None:
            return None
        record = JobRecord(doc)
        op = record.operation
        node = (op.node if op is not None and op.kind == "move" else None) or record.node
        gpu_ids = op.to if op is not None and launch is None else record.gpu_ids
        if record.gpus_per_pod is not None:
            return self._of_gang(record, gpu_ids, member)
        gpus = self._store.list("gpus", {"node": node}) if node else []
        emulated = not any(not gpu.get("emulated") for gpu in gpus)
        return PodDecision(record.id, node or doc.get("pinned"), gpu_ids, emulated, _mode(record), _claim(doc))

    def _launched(self, launch: str) -> Doc | None:
        """Return the job as its launch was requested, without an operation that the job has begun since."""
        found = self._store.get("launches", launch)
        return (found or {}).get("doc")

    def _of_gang(self, record: JobRecord, gpu_ids: tuple[str, ...], member: int) -> PodDecision:
        """Return the decision for one member; a member beyond the job's present size gets no GPUs."""
        parts = record.parts(gpu_ids)
        part = parts[member] if member < len(parts) else ()
        gpu = self._store.get("gpus", part[0]) if part else None
        node, emulated = ((gpu or {}).get("node"), bool((gpu or {}).get("emulated", True)))
        return PodDecision(record.id, node, part, emulated, _mode(record), _claim(record.doc))


def _mode(record: JobRecord) -> Devices | None:
    """Return how a launched job gets its GPUs; None before its first launch, when its queue says how."""
    return devices_of(record.doc) if record.launch else None


def _claim(doc: JobRow) -> str | None:
    claim: str | None = doc.get("checkpoint_claim")
    return claim
