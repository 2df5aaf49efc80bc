"""Builds the `LaunchState` of a launch from its document, the informers and, where they lack it, the API server.

Promises: a launch whose job is not certainly alive counts as not wanted, unless the store has lost its jobs; the API
server is asked only about what is missing, at most every few seconds. Used by `launch_service.py`, in its one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator.model import states as s
from coordinator.model.tables import JobRow, LaunchRow
from coordinator.ports import Clock, Store
from coordinator.stores.rules import are_lost
from launcher.admission.inject import PodSettings
from launcher.cluster.api import KubernetesApi
from launcher.cluster.controllers import gang_launch, one_pod_jobs, volcano_job_document
from launcher.cluster.controllers.launch import LaunchState, PodBinding
from launcher.cluster.pods.pod_state import ObservedCluster, Pod
from launcher.names import POD_SUFFIX, is_made_by_launcher

Doc = dict[str, Any]

LOOK_S = 3.0


class LaunchStates:
    """`busy(name)`: whether a playbook of that launch runs."""

    def __init__(
        self,
        store: Store,
        cluster: KubernetesApi,
        clock: Clock,
        settings: PodSettings,
        patience_s: float,
        busy: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._namespace = settings.namespace
        self._api_kind = "Job" if settings.volcano else "BatchJob"  # that records are launched as
        self._patience_s, self._busy = patience_s, busy
        self._asked: dict[str, float] = {}  # when the removal of each launch was first seen
        self._looked: dict[str, float] = {}  # when it was last asked why a launch has no pod
        self._nodes: dict[str, str] | None = None  # of each GPU, as read in this turn; only gangs need it

    def forget_all_but(self, known: set[str]) -> None:
        """End a turn: drop the GPUs' nodes and the times of all launches but `known`."""
        self._nodes = None
        for times in (self._asked, self._looked):
            for name in times.keys() - known:
                del times[name]

    def lost(self, records: Sequence[LaunchRow], jobs: Mapping[str, JobRow]) -> set[str]:
        """Return the wanted launches whose jobs the store has lost: they train until a coordinator writes them back.

        `records` were read before `jobs`, as for `view`.
        """
        of_launch = {r["_id"]: (r.get("doc") or {}).get("_id") for r in records if r.get("wanted") == "launch"}
        missing = {str(key): key for key in of_launch.values() if key is not None and str(key) not in jobs}
        if are_lost(len(missing), len(jobs) + len(missing)):  # or closed
            missing = {text: key for text, key in missing.items() if self._store.get("jobs", key) is None}
        if not are_lost(len(missing), len(jobs) + len(missing)):
            return set()
        return {name for name, key in of_launch.items() if str(key) in missing}

    def api_kind(self, namespace: str, name: str, observed: ObservedCluster) -> str:
        """Return the kind, in `launcher.cluster.api`, of the object that a launch of ours has, or is to get."""
        found = observed.job_named(namespace, name)
        return self._api_kind if found is None else one_pod_jobs.api_kind(one_pod_jobs.origin_of(found))

    def is_out_of_sight(self, record: LaunchRow, observed: ObservedCluster) -> bool:
        """True for a wanted launch of a Volcano Job while such are not watched: nothing is known about it."""
        if record.get("wanted") != "launch" or observed.has_volcano_jobs:
            return False
        if origin := _theirs(record):
            return "kind" not in origin
        made = observed.job_named(self.namespace(record.get("doc") or {}), record["_id"])
        return self._api_kind == "Job" and bool(record.get("applied")) and made is None

    def namespace(self, doc: Doc) -> str:
        return str(doc.get("namespace") or self._namespace)

    def view(
        self, record: LaunchRow, observed: ObservedCluster, jobs: Mapping[str, JobRow], claimed: Mapping[str, str]
    ) -> LaunchState:
        """Return the state of one launch.

        `jobs`: those that are not closed, by `_id`; `claimed`: the launch that each recorded pod belongs to, by uid.
        """
        name = record["_id"]
        here = self._living(record, jobs)
        over = here is None or int(here.get("launch") or 0) > int(record["launch"])
        job, pods = self._observed(record, observed, claimed)
        ended, bindings = here is None or here.get("state") in s.ENDED, self._bindings(record)
        short = len(pods) < max(1, len(bindings)) and not _theirs(record)
        refused = self._refused(record, job) if job is not None and short else None
        return LaunchState(
            record,
            pods,
            job,
            self._busy(name),
            over,
            ended,
            self._patient(record, ended),
            refused,
            bindings,
            self._made_as(job),
        )

    def _made_as(self, job: Doc | None) -> str:
        """Return what makes the pods of a record's launch, in words."""
        if job is not None:
            return one_pod_jobs.described(one_pod_jobs.origin_of(job))
        return "Volcano Job" if self._api_kind == "Job" else "batch Job"

    def _bindings(self, record: LaunchRow) -> tuple[PodBinding, ...]:
        doc = record.get("doc") or {}
        if not doc.get("gpus_per_pod"):
            return ()
        if self._nodes is None:
            self._nodes = {str(gpu["_id"]): str(gpu.get("node")) for gpu in self._store.list("gpus")}
        return gang_launch.pod_bindings(doc, self._nodes)

    def _observed(
        self, record: LaunchRow, observed: ObservedCluster, claimed: Mapping[str, str]
    ) -> tuple[Doc | None, tuple[Pod, ...]]:
        """Return its Volcano Job, and the pods that are or may become its own."""
        doc, name = record.get("doc") or {}, record["_id"]
        if origin := _theirs(record):
            # Only pods of its namespace: a pod elsewhere that names this owner must not be given the key.
            here = [pod for pod in observed.pods.values() if pod.namespace == str(origin.get("namespace"))]
            pods = [pod for pod in here if pod.owner == origin.get("uid")]
            mine = tuple(pod for pod in pods if claimed.get(pod.uid, name) == name)
            return observed.jobs.get(str(origin.get("uid"))), mine
        job, namespace = observed.job_named(self.namespace(doc), name), self.namespace(doc)
        served = self._api_kind != "Job" or observed.has_volcano_jobs
        if job is None and served and record.get("applied") and not record.get("gone"):  # our watch may be behind
            job = self._of_launcher(self._cluster.get(self._api_kind, name, namespace))
        # By name: a copied pod has the labels and annotations, too.
        known = [record.get("pod"), *gang_launch.recorded_pods(record)]
        names = {f"{name}{POD_SUFFIX}"} | {str(entry["name"]) for entry in known if entry}
        if job is not None and (doc.get("gpus_per_pod") or one_pod_jobs.kind_of(job)):
            names |= {pod.name for pod in observed.pods.values() if pod.owner == job["metadata"]["uid"]}
        return job, tuple(p for p in observed.pods.values() if p.namespace == namespace and p.name in names)

    def _of_launcher(self, found: Doc | None) -> Doc | None:
        """Return the object as a Volcano Job, if the launcher made it."""
        if found is None or self._api_kind == "Job":
            return found
        return one_pod_jobs.read_batch_job(found) if is_made_by_launcher(found) else None

    def _living(self, record: LaunchRow, jobs: Mapping[str, JobRow]) -> JobRow | None:
        """Return the job of a launch; None once it is closed or deleted, which is verified for a wanted launch."""
        key = (record.get("doc") or {}).get("_id")
        living = jobs.get(str(key))
        if living is None and record.get("wanted") == "launch" and key is not None:
            living = self._store.get("jobs", key)
        alive = living is not None and not living.get("closed", True) and living.get("uid") == record.get("uid")
        return living if alive else None

    def _refused(self, record: LaunchRow, job: Doc) -> str | None:
        """Return why Volcano could not make a pod, once a launch lacks one for `LOOK_S`."""
        name, now = record["_id"], self._clock.now()
        if record.get("wanted") != "launch" or record.get("failure") is not None:
            return None
        if now - self._looked.setdefault(name, now) < LOOK_S:
            return None
        self._looked[name] = now
        about = volcano_job_document.failed_creates(job["metadata"]["uid"])
        return volcano_job_document.refusal(
            self._cluster.list("Event", job["metadata"].get("namespace"), fields=about).items
        )

    def _patient(self, record: LaunchRow, ended: bool) -> bool:
        """True if the pod of an ended job still has time to end by itself."""
        if record.get("wanted") != "remove" or not ended:
            return False
        now = self._clock.now()
        return now - self._asked.setdefault(record["_id"], now) < self._patience_s


def _theirs(record: LaunchRow) -> Mapping[str, Any] | None:
    """Return the user's Volcano Job (namespace, name, uid) of this launch, or None."""
    origin = (record.get("doc") or {}).get("volcano") if record.get("origin") == "volcano" else None
    return origin if isinstance(origin, dict) else None
