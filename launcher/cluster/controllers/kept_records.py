"""Keeps the record of each launch with its Volcano Job, and writes back those that the store has lost.

A training outlives its store. Without its record it would come in as another job: a second one beside the one that
trains, and GPUs in use would count as free. So each Volcano Job carries the record of its launch as an annotation,
signed with the master key and for its uid, so that no user can make one up. Promises: what the store has is never
changed; a Volcano Job without a living pod is left alone; coordinators are told in table `terms` which trainings were
written back, and wait for their sidecars. Called by `launch_service.py`, in its one thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from coordinator.errors import Conflict
from coordinator.model.tables import LaunchRow, plain
from coordinator.ports import Store
from coordinator.recovery.lost_trainings import tell_lost_trainings
from launcher.cluster.api import KubernetesApi
from launcher.cluster.controllers import one_pod_jobs
from launcher.cluster.pods.pod_state import ObservedCluster
from launcher.names import RECORD, launch_name
from sidecar.protocol import sign, signed

Doc = dict[str, Any]

LARGEST = 64 * 1024  # bytes of a record: Kubernetes takes 256 KiB of annotations
LEFT_OUT = ("notify",)  # an address that may hold a secret, and that others in the namespace could read here
OF_LAUNCHES = ("emulated_speed",)  # what a coordinator adds to a document for its launch

log = logging.getLogger(__name__)


class KeptRecords:
    """`keep` writes the annotation of one launch where it is missing; `write_back` restores lost records."""

    def __init__(self, store: Store, cluster: KubernetesApi, master_key: bytes) -> None:
        self._store = store
        self._cluster = cluster
        self._master_key = master_key
        self._written: dict[str, str] = {}  # by launch, the uid of the Volcano Job that it was written to

    def forget_all_but(self, known: set[str]) -> None:
        """Drop the memory of all launches but these."""
        self._written = {name: uid for name, uid in self._written.items() if name in known}

    def keep(self, record: LaunchRow, job: Mapping[str, Any] | None) -> None:
        """Annotate the Volcano Job of a launch that came up, once."""
        name = str(record["_id"])
        if job is None or not record.get("applied") or "deletionTimestamp" in job["metadata"]:
            return
        about = job["metadata"]
        if self._written.get(name) == about["uid"] or _launch_of(job) == name:
            return
        self._written[name] = str(about["uid"])
        doc = plain(record["doc"])
        kept = {key: value for key, value in doc.items() if key not in LEFT_OUT}
        text = json.dumps(kept, default=str)
        if len(text.encode()) > LARGEST:
            log.warning("job %s: its record is too large to be kept with its Volcano Job", record.get("job_id"))
            return
        value = f"{name} {self._signature_of(about, text)} {text}"
        same: Doc = {"op": "test", "path": "/metadata/uid", "value": about["uid"]}
        operations = [same, *one_pod_jobs.annotation(job, RECORD, value)]
        kind = one_pod_jobs.api_kind(one_pod_jobs.origin_of(job))
        self._cluster.patch_json(kind, about["name"], operations, about.get("namespace"))

    def write_back(self, observed: ObservedCluster) -> None:
        """Write back records of trainings that live and of which the store knows nothing, and tell coordinators."""
        living = {pod.owner for pod in observed.pods.values() if pod.trains and pod.launch is not None}
        found = [job for uid, job in sorted(observed.jobs.items()) if uid in living]
        lost = [doc for doc in map(self._own_record, found) if doc is not None and self._insert_lost(doc)]
        for doc in lost:
            log.warning("job %s trains and the store had lost it: its record is written back", doc["job_id"])
        tell_lost_trainings(self._store, [str(doc["job_id"]) for doc in lost])

    def _own_record(self, job: Mapping[str, Any]) -> Doc | None:
        """Return the record that this Volcano Job carries; None if it carries none of ours."""
        about = job["metadata"]
        _, signature, text = [*_kept_record(job).split(" ", 2), "", "", ""][:3]
        if not text or not signed(self._master_key, "RECORD", str(about["uid"]), text.encode(), signature):
            return None
        doc: Doc = json.loads(text)
        return doc

    def _insert_lost(self, doc: Doc) -> bool:
        """Insert the job, and its launch; False if the store knows either."""
        name = launch_name(str(doc["job_id"]), str(doc["uid"]), int(doc["launch"]))
        if self._store.get("jobs", doc["_id"]) is not None or self._store.get("launches", name) is not None:
            return False
        theirs = doc.get("origin") == "volcano"
        row = {
            "_id": name,
            "job_id": doc["job_id"],
            "uid": doc["uid"],
            "launch": doc["launch"],
            "origin": "volcano" if theirs else "record",
            "failure": None,
            "gone": False,
            "pod": None,
            "version": 1,
            "wanted": "launch",
            "doc": doc,
            "applied": not theirs,
        }
        try:
            self._store.insert("jobs", {key: value for key, value in doc.items() if key not in OF_LAUNCHES})
            self._store.insert("launches", row)
        except Conflict:  # a coordinator that had it in memory was first
            return False
        return True

    def _signature_of(self, about: Mapping[str, Any], text: str) -> str:
        return sign(self._master_key, "RECORD", str(about["uid"]), text.encode())


def is_recorded(job: Mapping[str, Any]) -> bool:
    """True if this Volcano Job has come up as a job of ours before, whatever the store says."""
    return bool(_kept_record(job))


def _kept_record(job: Mapping[str, Any]) -> str:
    return str((job["metadata"].get("annotations") or {}).get(RECORD) or "")


def _launch_of(job: Mapping[str, Any]) -> str:
    return _kept_record(job).partition(" ")[0]
