"""The Platform port on a cluster: writes the wanted state of each launch into table `launches` for the launcher.

Promises (`coordinator.ports.Platform`): every call is a read and at most one write, may be repeated, and may come from
several coordinators; a launch whose removal was requested never comes up again, even if requested late.
The launcher (`launcher.cluster.launch_service`) carries it out, and writes `failure`, `unplaced`, `gone`, `pod` and,
of a gang, `pods` into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from coordinator.adapters.logs import READER, ArchivedLogs, address
from coordinator.adapters.present_use import LaunchedPod
from coordinator.errors import Conflict, Fatal, Rejected, Transient
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow, LaunchChanges, LaunchRow, plain
from coordinator.ports import Clock, Doc, Evidence, Sidecars, Store
from sidecar.protocol import launch_key

TABLE = "launches"
REMOVED = "this launch has been removed already"
TRIES = 5  # attempts at a document that others change meanwhile


class LaunchNamer(Protocol):
    """The type of `launcher.names.launch_name`, which the layer above passes in."""

    def __call__(self, job_id: str, uid: str, launch: int) -> str: ...


class Launches:
    """Thread-safe as its store is."""

    def __init__(
        self,
        store: Store,
        sidecars: Sidecars,
        master_key: bytes,
        port: int,
        name: LaunchNamer,
        clock: Clock,
        claimed: bool = False,
    ) -> None:
        """`port`: of sidecars in pods. `claimed`: whether jobs without a `checkpoint_claim` have a claim by default."""
        self._store, self._sidecars, self._master_key, self._port = store, sidecars, master_key, port
        self._name, self._claimed = name, claimed
        self._kept = ArchivedLogs(store, sidecars, master_key, clock)

    def launch(self, doc: JobRow) -> None:
        """Request a launch; does nothing if it is requested and has not failed. A failed launch is tried again.

        A gang whose GPUs have changed gets or loses pods (`launcher.cluster.controllers.gang_launch`).
        """
        asked: LaunchChanges = {"wanted": "launch", "doc": doc, "failure": None, "unplaced": None}
        for _ in range(TRIES):
            found = self._found(doc)
            if found is None:
                if self._insert(doc, asked):
                    return
            elif _is_done(found, doc) or self._change(found, asked):
                return
        raise Transient(f"the launch of job {JobRecord(doc).id} keeps changing")

    def failure(self, doc: JobRow) -> str | None:
        """Return why the launch failed; None if it has not."""
        found = self._found(doc)
        if found is None:
            return None
        failure = REMOVED if found.get("wanted") != "launch" else found.get("failure")
        return None if failure is None else str(failure)

    def vanished(self, doc: JobRow) -> frozenset[int]:
        """Pods whose objects were deleted by force, or with their node."""
        found = self._found(doc) or {}
        pods = found.get("pods") or [found.get("pod")]
        return frozenset(k for k, pod in enumerate(pods) if pod and pod.get("phase") == "Deleted")

    def nothing_runs(self, job_id: str) -> bool:
        """True if the launcher has proof for all launches under that name, or has no row of any left.

        It deletes that of a missing job once its pods have ended, or their objects were deleted by force.
        """
        return all(row.get("gone") for row in self._store.list(TABLE) if str(row.get("job_id")) == job_id)

    def keep(self, doc: JobRow) -> None:
        """Do nothing: a launch's row holds the document of its job as it was launched."""

    def adopt(self, doc: JobRow) -> None:
        """Insert the row of a launch that was applied; the launcher finds its pods again. Without it `gone` is True."""
        self._insert(doc, {"wanted": "launch", "doc": doc, "applied": True})

    def recall(self, jobs: Sequence[JobRow]) -> Evidence:
        """Return the documents of launches of which pods were seen, as they were launched."""
        rows = [
            row for row in self._store.list(TABLE) if row.get("wanted") == "launch" and isinstance(row.get("doc"), dict)
        ]
        return Evidence(tuple(row["doc"] for row in rows))

    def unplaced(self, doc: JobRow) -> str | None:
        """Return why Volcano has not placed its pod yet; None if it has, or if the launch has failed, as by a quota."""
        found = self._found(doc) or {}
        why = found.get("unplaced")
        return None if why is None or found.get("failure") is not None else str(why)

    def remove(self, doc: JobRow) -> None:
        """Request the removal of a launch, even one never requested: a late request must not bring it up.

        `moved` is written if the job leaves this launch to train elsewhere.
        """
        job = JobRecord(doc)
        wanted: LaunchChanges = {"wanted": "remove"}
        if job.operation is not None and job.operation.leaves == job.launch:
            wanted["moved"] = True
        for _ in range(TRIES):
            found = self._found(doc)
            if found is None:
                if self._insert(doc, {"wanted": "remove", "doc": doc, "gone": True}):
                    return
            elif found.get("wanted") == "remove" or self._change(found, wanted):
                return
        raise Transient(f"the launch of job {JobRecord(doc).id} keeps changing")

    def gone(self, doc: JobRow) -> bool:
        """True if the launcher has proof that no process of it runs.

        A launch that came up had a pod: until the launcher knows which one, it can prove nothing about it.
        """
        found = self._found(doc)
        if found is None:
            return True  # never requested, or cleaned up
        came_up = doc.get("up") is not None and doc.get("up") == doc.get("launch")
        return bool(found.get("gone")) and not (came_up and found.get("pod") is None and found.get("applied"))

    def ended(self, doc: JobRow) -> frozenset[int]:
        """Pods of a gang that ended by proof of the launcher, without those that the gang shrank by."""
        pods = (self._found(doc) or {}).get("pods") or []
        return frozenset(k for k, pod in enumerate(pods) if pod and pod.get("ended") and not pod.get("left"))

    def output(self, doc: JobRow, offset: int, limit: int) -> tuple[bytes, int]:
        """Output from the sidecar of the present launch, or from the claim of a job without one.

        Empty before the first launch.
        """
        job = JobRecord(doc)
        pod, over = (self._found(doc) or {}).get("pod") or {}, job.state in s.ENDED or job.state == s.SUBMITTED
        url = None if pod.get("ended") else address(pod.get("ip"), self._port)
        if url is not None:
            key = launch_key(self._master_key, job.uid, job.launch)
            try:
                return self._sidecars.read_output(url, key, job.id, job.launch, offset, limit)
            except Transient:
                if not over:
                    raise
        return self._of_the_past(job, offset, limit) if over and job.launch > 0 else (b"", offset)

    def _of_the_past(self, job: JobRecord, offset: int, limit: int) -> tuple[bytes, int]:
        if not (self._claimed or job.doc.get("checkpoint_claim")):
            if job.state not in s.ENDED:
                return b"", offset
            raise Rejected(f"The log of job {job.id} went with its pod; give such jobs a checkpoint_claim.", 410)
        return self._kept.read(self._name(job.id, job.uid, READER), job, self._port, offset, limit)

    def pods(self, doc: JobRow) -> list[Doc]:
        """Name, namespace and node of each pod of the present launch that is known."""
        found = self._found(doc) or {}
        return [pod for pod in found.get("pods") or [found.get("pod")] if pod]

    def pods_by_member(self, doc: JobRow) -> list[Doc | None]:
        """Return the pod of each member of the present launch, as the launcher recorded it; None where it has not."""
        found = self._found(doc) or {}
        return list(found.get("pods") or [found.get("pod")])

    def all_pods(self) -> list[LaunchedPod]:
        """The pods of all launches that have a node, in one reading of the store."""
        rows = self._store.scan(TABLE, ("uid", "launch", "pod", "pods", "gone"))
        return [
            LaunchedPod(str(row["uid"]), int(row["launch"]), str(pod["namespace"]), str(pod["name"]), str(pod["node"]))
            for row in rows
            if not row.get("gone")
            for pod in row.get("pods") or [row.get("pod")]
            if pod and pod.get("node")
        ]

    def _found(self, doc: JobRow) -> LaunchRow | None:
        return self._store.get(TABLE, self._key(doc))

    def _key(self, doc: JobRow) -> str:
        job = JobRecord(doc)
        return self._name(job.id, job.uid, job.launch)

    def _insert(self, doc: JobRow, asked: LaunchChanges) -> bool:
        job = JobRecord(doc)
        origin = "volcano" if doc.get("origin") == "volcano" else "record"
        wanted: LaunchChanges = {
            "_id": self._key(doc),
            "job_id": job.raw_id,
            "uid": job.uid,
            "launch": job.launch,
            "origin": origin,
            "failure": None,
            "gone": False,
            "pod": None,
            "version": 1,
            **asked,
        }
        try:
            self._store.insert(TABLE, plain(wanted))
        except Conflict:  # another coordinator was first
            return False
        except Rejected as error:
            raise Fatal(f"its document cannot be handed to the launcher: {error}") from None
        return True

    def _change(self, found: LaunchRow, changes: LaunchChanges) -> bool:
        try:
            self._store.update(TABLE, found["_id"], {"version": found.get("version")}, changes)
        except Conflict:
            return False
        return True


def _scales(found: LaunchRow, doc: JobRow) -> bool:
    """True if the number of pods of a gang's launch has changed."""
    return bool(doc.get("gpus_per_pod")) and (found.get("doc") or {}).get("gpu_ids") != doc.get("gpu_ids")


def _is_done(found: LaunchRow, doc: JobRow) -> bool:
    """True if a request for the launch would change nothing."""
    as_before = found.get("failure") is None and not _scales(found, doc)
    return found.get("wanted") != "launch" or as_before
