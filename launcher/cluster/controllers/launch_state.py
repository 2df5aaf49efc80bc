"""How one launch stands: its document, what the watches show of it, and what only asking tells.

Promises: a launch whose job is not certainly alive is one that nobody wants; the API server is asked only about what
is missing, and no oftener than every few seconds. Made and used by `service.py`, in its one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coordinator.model import states as s
from coordinator.ports import Clock, Store
from launcher.cluster.api import KubernetesApi
from launcher.cluster.controllers import gang_launch, volcano_job_document
from launcher.cluster.controllers.launch import LaunchState, Seat
from launcher.cluster.pods.pod_state import ObservedCluster as Shown
from launcher.cluster.pods.pod_state import Pod
from launcher.names import POD_SUFFIX

Doc = dict[str, Any]

LOOK_S = 3.0
FAILED_CREATE = "FailedCreate"  # Volcano's word, on the Volcano Job


class Views:
    """`busy(name)`: whether a playbook of that launch is under way. `namespace`: of jobs whose record names none."""

    def __init__(
        self, store: Store, cluster: KubernetesApi, clock: Clock, namespace: str, patience_s: float,
        busy: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self._store, self._cluster, self._clock, self._namespace = store, cluster, clock, namespace
        self._patience_s, self._busy = patience_s, busy
        self._asked: dict[str, float] = {}  # when the removal of each launch was first seen
        self._looked: dict[str, float] = {}  # when it was last asked why a launch has no pod
        self._nodes: dict[str, str] | None = None  # of each GPU, as read in this turn; only gangs need it

    def forget(self, known: set[str]) -> None:
        """The end of a turn: all launches but these, and where the GPUs were."""
        self._nodes = None
        for times in (self._asked, self._looked):
            for name in times.keys() - known:
                del times[name]

    def namespace(self, doc: Doc) -> str:
        return str(doc.get("namespace") or self._namespace)

    def view(self, record: Doc, shown: Shown, jobs: Mapping[str, Doc], claimed: Mapping[str, str]) -> LaunchState:
        """`jobs`: those that are not closed, by `_id`; `claimed`: which launch each pod was written down for."""
        name = record["_id"]
        here = self._living(record, jobs)
        over = here is None or int(here.get("launch") or 0) > int(record["launch"])
        job, pods = self._shown(record, shown, claimed)
        ended, seats = here is None or here.get("state") in s.ENDED, self._seats(record)
        short = len(pods) < max(1, len(seats)) and not _theirs(record)
        refused = self._refused(record, job) if job is not None and short else None
        return LaunchState(
            record, pods, job, self._busy(name), over, ended, self._patient(record, ended), refused, seats
        )

    def _seats(self, record: Doc) -> tuple[Seat, ...]:
        doc = record.get("doc") or {}
        if not doc.get("gpus_per_pod"):
            return ()
        if self._nodes is None:
            self._nodes = {str(gpu["_id"]): str(gpu.get("node")) for gpu in self._store.list("gpus")}
        return gang_launch.seats(doc, self._nodes)

    def _shown(self, record: Doc, shown: Shown, claimed: Mapping[str, str]) -> tuple[Doc | None, tuple[Pod, ...]]:
        """Its Volcano Job, and the pods that are or may become its own."""
        doc, name = record.get("doc") or {}, record["_id"]
        if origin := _theirs(record):
            # Whoever knows that uid could name it as the owner of a pod elsewhere, and would be given the key.
            here = [pod for pod in shown.pods.values() if pod.namespace == str(origin.get("namespace"))]
            pods = [pod for pod in here if pod.owner == origin.get("uid")]
            mine = tuple(pod for pod in pods if claimed.get(pod.uid, name) == name)
            return shown.jobs.get(str(origin.get("uid"))), mine
        job, namespace = shown.job_named(self.namespace(doc), name), self.namespace(doc)
        if job is None and record.get("applied") and not record.get("gone"):  # it may only not be shown yet
            job = self._cluster.get("Job", name, namespace)
        # A pod that somebody copied has the labels and annotations, not the name.
        names = {f"{name}{POD_SUFFIX}"} | {str(entry["name"]) for entry in gang_launch.known(record)}
        if doc.get("gpus_per_pod") and job is not None:
            names |= {pod.name for pod in shown.pods.values() if pod.owner == job["metadata"]["uid"]}
        return job, tuple(p for p in shown.pods.values() if p.namespace == namespace and p.name in names)

    def _living(self, record: Doc, jobs: Mapping[str, Doc]) -> Doc | None:
        """The living job of a launch; None once it is closed or deleted, of which a wanted launch has to be sure."""
        key = (record.get("doc") or {}).get("_id")
        living = jobs.get(str(key))
        if living is None and record.get("wanted") == "launch" and key is not None:
            living = self._store.get("jobs", key)
        alive = living is not None and not living.get("closed", True) and living.get("uid") == record.get("uid")
        return living if alive else None

    def _refused(self, record: Doc, job: Doc) -> str | None:
        """What Volcano says of the pod that it could not make, if a launch has none for long."""
        name, now = record["_id"], self._clock.now()
        if record.get("wanted") != "launch" or record.get("failure") is not None:
            return None
        if now - self._looked.setdefault(name, now) < LOOK_S:
            return None
        self._looked[name] = now
        about = f"involvedObject.uid={job['metadata']['uid']},reason={FAILED_CREATE}"
        found = self._cluster.list("Event", job["metadata"].get("namespace"), fields=about).items
        newest = max(found, key=lambda event: str(event.get("lastTimestamp")), default=None)
        return volcano_job_document.words(str(newest.get("message"))) if newest is not None else None

    def _patient(self, record: Doc, ended: bool) -> bool:
        """Whether the pod of a job that has ended is still given time to end by itself."""
        if record.get("wanted") != "remove" or not ended:
            return False
        now = self._clock.now()
        return now - self._asked.setdefault(record["_id"], now) < self._patience_s


def _theirs(record: Doc) -> Mapping[str, Any] | None:
    """The user's Volcano Job that it is a launch of."""
    origin = (record.get("doc") or {}).get("volcano") if record.get("origin") == "volcano" else None
    return origin if isinstance(origin, dict) else None
