"""Turns users' Volcano Jobs and Queues into job documents and rows of table `queues`.

Each turn compares and repairs: a Volcano Job without a job document gets one, a document whose Volcano Job is gone is
cancelled, an ended job has its Volcano Job terminated. Likewise batch Jobs and bare pods, which `one_pod_jobs` reads as
Volcano Jobs. Idempotent: `_id`s are derived from uids. Called by `launch_service.py`, in its one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from coordinator.errors import Conflict, Fatal, Rejected, ReshapeError
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobChanges, JobRow
from coordinator.ports import Clock, Store
from coordinator.scheduling.intake import WAITS_FOR_ITS_TURN
from launcher.admission import kinds
from launcher.admission.inject import Devices, Injection, PodSettings, inject
from launcher.admission.owners import proven_owner
from launcher.cluster.api import KubernetesApi
from launcher.cluster.controllers import one_pod_jobs, volcano_job_document, volcano_queue
from launcher.cluster.controllers.kept_records import is_recorded
from launcher.cluster.event_writer import EventWriter, event_stamp
from launcher.cluster.pods.pod_state import ObservedCluster, Pod
from launcher.names import DEVICES, INJECT, QUEUE_LABEL

Doc = dict[str, Any]

WEBHOOKS, BY_QUEUE = "reshape-inject", "queue.volcano-reshape.io"
NO_QUEUE = "none.volcano-reshape"  # a value that no queue can have, since a selector needs one
MODES = ("shared", "recreate", "pool")
WAITS_S = 600.0  # between two Events that say why the same job waits
SELECT_S = 2.0  # how often the webhook's selector is compared: each `kubectl apply` of the manifests resets it

log = logging.getLogger(__name__)


class VolcanoJobController:
    """`turn` with what the cluster shows and the job documents that are not closed, by their `_id`."""

    def __init__(
        self,
        store: Store,
        cluster: KubernetesApi,
        clock: Clock,
        events: EventWriter,
        settings: PodSettings,
        patience_s: float,
        master_key: bytes,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        """`namespaces`: those that are watched; none: all."""
        self._namespaces = namespaces
        self._master_key = master_key
        self._store, self._cluster, self._clock, self._events = store, cluster, clock, events
        self._settings, self._patience_s = settings, patience_s
        self._inserted: set[str] = set()
        self._refused: dict[str, str] = {}  # resource version of each Volcano Job that was refused
        self._ended: dict[str, float] = {}  # when a Volcano Job was first seen without a living job
        self._evicted: dict[str, tuple[str, float, str]] = {}  # of each evicted pod: its owner, when it was seen, why
        self._waits: dict[str, tuple[float, str]] = {}  # when the last Event said why a Volcano Job waits, and what
        self._queues: dict[str, Doc] | None = None  # as written
        self._unproven: set[str] = set()  # uids of Volcano Jobs that are not seen, without a proof that they are gone
        self._select_at = 0.0
        self._selects = True  # whether there was a webhook to select for

    def turn(self, observed: ObservedCluster, jobs: Mapping[str, JobRow]) -> None:
        labelled = self._keep_queues(observed, jobs)
        self._remember_evictions(observed)
        for uid, job in sorted(observed.jobs.items()):
            self._tend(uid, job, labelled, observed, jobs)
        self._cancel_orphans(observed, jobs)
        self._pin(observed, jobs)
        self._hold_back(observed, jobs)
        self._drop_refused(observed)
        self._forget(observed)

    def _forget(self, observed: ObservedCluster) -> None:
        """Drop the memory of Volcano Jobs that are gone."""
        known = {volcano_job_document.job_key(uid) for uid in observed.jobs}
        self._ended = {uid: since for uid, since in self._ended.items() if uid in observed.jobs}
        self._waits = {uid: at for uid, at in self._waits.items() if uid in observed.jobs}
        self._refused = {key: version for key, version in self._refused.items() if key in known}
        self._inserted &= known

    def _tend(
        self, uid: str, job: Doc, labelled: list[str], observed: ObservedCluster, jobs: Mapping[str, JobRow]
    ) -> None:
        """Reconcile one Volcano Job; an error in one hinders no other."""
        try:
            key = volcano_job_document.job_key(uid)
            if said := volcano_job_document.misused_label(job):
                self._events.write(job, "LabelIgnored", said, warning=True)
            if volcano_job_document.is_managed(job, labelled) or key in jobs or key in self._inserted:
                self._keep_job(uid, job, observed, jobs)
            elif said := volcano_job_document.missing_label(job, labelled):
                self._events.write(job, "NotLabelled", said, warning=True)
        except ReshapeError as error:
            log.warning("Volcano Job %s: %s", job["metadata"]["name"], error)
        except Exception:
            log.exception("Volcano Job %s", uid)

    # queues

    def _keep_queues(self, observed: ObservedCluster, jobs: Mapping[str, JobRow]) -> list[str]:
        """Write table `queues` and the webhook's selector; return the names of the labelled queues.

        A living job stays managed when its queue loses the label: its next pod would see every GPU otherwise.
        """
        wanted = {name: self._queue(name, queue) for name, queue in observed.queues.items()}
        labelled = sorted(name for name, queue in wanted.items() if queue["inject"])
        if wanted != self._queues:
            self._write_queues(wanted)
        if wanted != self._queues or self._clock.now() >= self._select_at:
            lives = [job for uid, job in observed.jobs.items() if volcano_job_document.job_key(uid) in jobs]
            theirs = {
                volcano_job_document.queue_of(job) for job in lives if not volcano_job_document.has_inject_label(job)
            }
            self._select(sorted(theirs.union(labelled)))
            self._select_at = self._clock.now() + SELECT_S
        self._queues = wanted
        return labelled

    def _write_queues(self, wanted: Mapping[str, Doc]) -> None:
        written = {str(doc["_id"]): doc for doc in self._store.list("queues")}
        for name, queue in wanted.items():
            if queue.items() - written.get(name, {}).items():
                self._store.put("queues", queue)
        for name in written.keys() - wanted.keys():
            self._store.delete("queues", name)

    def _queue(self, name: str, queue: Mapping[str, Any]) -> Doc:
        meta = queue["metadata"]
        devices = (meta.get("annotations") or {}).get(DEVICES, "shared")
        if devices not in MODES:
            said = f"The annotation {DEVICES} must be {', '.join(MODES[:-1])} or {MODES[-1]}, not "
            said += f"{str(devices)[:40]!r}; taken as shared."
            self._events.write(queue, "DevicesUnknown", said, warning=True)
            devices = "shared"
        if said := volcano_queue.annotation_problem(queue):
            self._events.write(queue, "MakespanWeightUnknown", said, warning=True)
        return {"_id": name, "inject": _is_labelled(queue), "devices": devices, **volcano_queue.share_of(queue)}

    def _select(self, queues: list[str]) -> None:
        found = self._cluster.get("MutatingWebhookConfiguration", WEBHOOKS)
        webhook = next((w for w in (found or {}).get("webhooks") or [] if w.get("name") == BY_QUEUE), None)
        if webhook is None and self._selects:
            log.warning("there is no webhook %s in %s: pods of labelled queues are not injected", BY_QUEUE, WEBHOOKS)
        self._selects = webhook is not None
        if webhook is None:
            return
        expression = {"key": QUEUE_LABEL, "operator": "In", "values": queues or [NO_QUEUE]}
        others = [e for e in _expressions(webhook) if e.get("key") != QUEUE_LABEL]
        if [*others, expression] != _expressions(webhook):
            selector = {"matchExpressions": [*others, expression]}
            self._cluster.patch(
                "MutatingWebhookConfiguration", WEBHOOKS, {"webhooks": [{"name": BY_QUEUE, "objectSelector": selector}]}
            )

    # jobs

    def _keep_job(self, uid: str, job: Doc, observed: ObservedCluster, jobs: Mapping[str, JobRow]) -> None:
        key = volcano_job_document.job_key(uid)
        if key in jobs:
            self._tell_why_it_waits(uid, job, jobs[key])
        if (
            key in jobs
            or "deletionTimestamp" in job["metadata"]
            or volcano_job_document.phase(job) in volcano_job_document.FINISHED
        ):
            return
        doc = self._store.get("jobs", key)
        if doc is not None and doc.get("state") not in s.ENDED:
            self._inserted.add(key)
            if found := doc.get("problems"):
                self._events.write(job, "JobRefused", "This job is not let in: " + "; ".join(found) + ".", warning=True)
            elif not doc.get("uid"):
                self._place(doc, uid, observed)
        elif doc is None and key not in self._inserted and is_recorded(job) and _has_training(uid, observed):
            self._events.write(job, "RecordLost", RECORD_LOST, warning=True)
        elif doc is None and key not in self._inserted:
            if volcano_job_document.pod_count(job) and not any(pod.owner == uid for pod in observed.pods.values()):
                self._events.write(job, "TooLate", TOO_LATE, warning=True)
            else:
                self._insert(key, job)
        else:  # it has ended, or its user deleted the document to end it
            self._end(uid, job)

    def _tell_why_it_waits(self, uid: str, job: Doc, doc: JobRow) -> None:
        """Write an Event with the reason: Volcano itself can only say that the gang is unschedulable."""
        reason, now = doc.get("message"), self._clock.now()
        waits = doc.get("state") == s.SUBMITTED and isinstance(reason, str) and reason != WAITS_FOR_ITS_TURN
        at, said = self._waits.get(uid, (-WAITS_S, ""))
        more = bool(said) and reason != said and str(reason).startswith(said)  # what would start it was found meanwhile
        if waits and (more or now - at >= WAITS_S):
            self._waits[uid] = now, str(reason)
            self._events.write(job, "Waits", str(reason))

    def _insert(self, key: str, job: Doc) -> None:
        if self._refused.get(key) == str(job["metadata"].get("resourceVersion")):
            return
        try:
            if one_pod_jobs.kind_of(job) != kinds.POD:  # a bare pod was injected already
                self._check(job)
            taken = bool(self._store.list("jobs", {"job_id": volcano_job_document.job_id(job)}))
            who = proven_owner(self._master_key, job["metadata"])
            doc = volcano_job_document.job_document(job, taken, who, self._priority(job))
            if why := _held_back(None, job):  # at once: else it would be decided about, and cost it a try
                doc["held_back"] = why
            self._store.insert("jobs", doc)
            if said := volcano_job_document.fixed_size(job, doc):
                self._events.write(job, "KeepsItsSize", said, warning=True)
        except Rejected as refused:
            self._refused[key] = str(job["metadata"].get("resourceVersion"))
            reason = getattr(refused, "reason", "JobRefused")
            self._events.write(job, reason, str(refused), warning=True)
            return
        except Conflict:
            log.info("job %s was inserted already", key)
        self._inserted.add(key)

    def _priority(self, job: Doc) -> int | None:
        """Return the value of its PriorityClass; None if it names none, there is none, or the launcher may not look."""
        name = volcano_job_document.priority_class(job)
        try:
            found = self._cluster.get("PriorityClass", name) if name else None
        except Fatal as error:
            log.warning("the priority of Volcano Job %s is not known: %s", job["metadata"]["name"], error)
            return None
        return None if found is None else int(found.get("value") or 0)

    def _check(self, job: Doc) -> None:
        """Raise what the webhook would refuse, so that the user finds it as an Event of the Volcano Job."""
        for task in (job.get("spec") or {}).get("tasks") or []:
            template = task.get("template") or {}
            meta, queue = template.get("metadata") or {}, volcano_job_document.queue_of(job)
            devices = (self._queues or {}).get(queue, {}).get("devices", "shared")
            sees: Devices = "recreate" if devices == "recreate" else "shared"
            trial = Injection(job_id="trial", job="trial", launch="trial", devices=sees, emulated=True)
            inject(template.get("spec") or {}, meta, trial, self._settings)

    def _end(self, uid: str, job: Doc) -> None:
        """Terminate the Volcano Job once its pods had time to end: Volcano remakes pods that are only deleted."""
        now = self._clock.now()
        if now - self._ended.setdefault(uid, now) < self._patience_s:
            return
        about = job["metadata"]
        if kind := one_pod_jobs.kind_of(job):
            self._end_one_pod(kind, job)
            self._ended[uid] = now
            return
        owner = {"apiVersion": job["apiVersion"], "kind": "Job", "name": about["name"], "uid": uid}
        command = {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {
                "name": f"{about['name'][:200]}-reshape-end",
                "namespace": about.get("namespace"),
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}],
            },
            "action": "TerminateJob",
            "target": {**owner, "controller": True},
            "reason": "JobEnded",
            "message": "The job has ended in volcano-reshape.",
        }
        try:
            self._cluster.create(command)
        except Conflict:
            return  # Volcano has not taken it yet
        finally:
            self._ended[uid] = now  # tried again only after as long
        self._events.write(job, "Ended", "The job has ended, so its pods are stopped.")

    def _end_one_pod(self, kind: str, job: Doc) -> None:
        """End a batch Job as Failed, with the reason, or delete a bare pod."""
        about = job["metadata"]
        doc = self._store.get("jobs", volcano_job_document.job_key(str(about["uid"]))) or {}
        state = str(doc.get("state") or s.CANCELLED)
        why = f"job {doc.get('job_id')} {'has failed' if state == s.FAILED else f'is {state}'}"
        if said := doc.get("message"):
            why = f"{why}: {said}"
        if kind == kinds.BATCH_JOB:
            status = one_pod_jobs.failure_target(state, why, event_stamp(self._clock.wall()))
            self._cluster.patch("BatchJob", about["name"], status, about.get("namespace"), "status")
        else:
            self._cluster.delete("Pod", about["name"], about.get("namespace"), about["uid"])
        self._events.write(job, "Ended", f"The {kind} is ended: {why}.")

    def _cancel_orphans(self, observed: ObservedCluster, jobs: Mapping[str, JobRow]) -> None:
        """Cancel jobs whose Volcano Job was deleted or terminated."""
        for doc in jobs.values():
            origin = doc.get("volcano") if doc.get("origin") == "volcano" else None
            if not isinstance(origin, dict) or doc.get("cancel") or doc.get("state") in s.ENDED:
                continue
            if self._namespaces and origin.get("namespace") not in self._namespaces:
                continue  # not watched any more, so its absence proves nothing
            job = observed.jobs.get(str(origin.get("uid")))
            if job is None and not self._is_gone(origin, observed):
                continue
            ends = job is None or "deletionTimestamp" in job["metadata"] or self._over_for_long(job)
            if job is None or ends or volcano_job_document.phase(job) in TERMINATED:
                self._change(doc, {"cancel": True, "cancel_reason": self._why_gone(origin, job)})

    def _over_for_long(self, job: Doc) -> bool:
        """True if a batch Job or bare pod is over that the coordinator had time to hear of."""
        if one_pod_jobs.kind_of(job) is None or volcano_job_document.phase(job) not in volcano_job_document.FINISHED:
            return False
        now = self._clock.now()
        return now - self._ended.setdefault(str(job["metadata"]["uid"]), now) >= self._patience_s

    def _remember_evictions(self, observed: ObservedCluster) -> None:
        """Note them: an evicted pod may be gone by the time that its Volcano Job is terminated for it."""
        now = self._clock.now()
        for uid in [uid for uid, (_, seen, _) in self._evicted.items() if now - seen >= RECENT_S]:
            if uid not in observed.pods:
                del self._evicted[uid]
        for uid, pod in observed.pods.items():
            if pod.owner and (why := pod.evicted):
                self._evicted.setdefault(uid, (pod.owner, now, why))

    def _why_gone(self, origin: Mapping[str, Any], job: Mapping[str, Any] | None) -> str:
        """Return why a job ends whose Volcano Job ends or is gone, as far as the cluster tells."""
        uid = str(origin.get("uid"))
        what = one_pod_jobs.described(origin)
        if job is not None and what == kinds.POD and (why := (job.get("status") or {})["state"].get("message")):
            return str(why)
        evicted = self._evicted.get(uid)  # of a bare pod, whose uid is its own
        if job is None or "deletionTimestamp" in job["metadata"]:
            return f"{evicted[2]}, and was deleted" if evicted else f"its {what} was deleted"
        about, since = volcano_job_document.failed_creates(uid), event_stamp(self._clock.wall() - RECENT_S)
        events = self._cluster.list("Event", job["metadata"].get("namespace"), fields=about).items
        if refused := volcano_job_document.refusal(events, since):
            by = "Volcano" if what == "Volcano Job" else "Kubernetes"
            return f"{by} could not make its pod and gave up: {refused}"
        first = self._clock.now() - RECENT_S
        evictions = [(seen, why) for owner, seen, why in self._evicted.values() if owner == uid and seen > first]
        if evictions:
            return f"{max(evictions)[1]}; its {what} was terminated for that"
        state = (job.get("status") or {}).get("state") or {}
        said = state.get("message") or state.get("reason")
        has = "was terminated" if what == "Volcano Job" else "has ended"
        return f"its {what} {has}{f': {said}' if said else ''}"

    def _is_gone(self, origin: Mapping[str, Any], observed: ObservedCluster) -> bool:
        """True if an object that our watch does not show was certainly deleted: a cancellation is final.

        Nothing is certain about Volcano Jobs where their kind is not served, or goes with all of them.
        """
        if "kind" not in origin and not (observed.has_volcano_jobs and self._cluster.serves_kind("Job")):
            if str(origin.get("uid")) not in self._unproven:
                self._unproven.add(str(origin.get("uid")))
                log.warning(
                    "Volcano Job %s/%s is not seen, but its kind is not served now, so that its job is not cancelled",
                    origin.get("namespace"),
                    origin.get("name"),
                )
            return False
        return not self._there(origin)

    def _there(self, origin: Mapping[str, Any]) -> bool:
        """Ask the API server whether the object of this uid exists: our watch may be behind."""
        found = self._cluster.get(one_pod_jobs.api_kind(origin), str(origin.get("name")), str(origin.get("namespace")))
        return found is not None and found["metadata"].get("uid") == origin.get("uid")

    def _drop_refused(self, observed: ObservedCluster) -> None:
        """Delete documents that intake refused once their Volcano Jobs are gone, so that their names are free again."""
        for doc in self._store.list("jobs", {"closed": None}):
            origin = doc.get("volcano") if doc.get("origin") == "volcano" and doc.get("problems") else None
            if isinstance(origin, dict) and origin.get("uid") not in observed.jobs and self._is_gone(origin, observed):
                try:
                    self._store.delete("jobs", doc["_id"], {"version": doc.get("version")})
                except Conflict:
                    log.info("job %s has changed; looking again", doc["_id"])

    def _pin(self, observed: ObservedCluster, jobs: Mapping[str, JobRow]) -> None:
        """Pin a new job to the node on which Volcano placed its pod while no extender answered.

        A job that was launched before, or whose pod is on a node without GPUs, gets another pod on its decided node.
        """
        for pod in observed.pods.values():
            placed = pod.owner is not None and pod.alive and not pod.waits_for_node and (pod.node or pod.pinned)
            doc = jobs.get(volcano_job_document.job_key(str(pod.owner))) if placed else None
            new = doc is not None and doc.get("state") == s.SUBMITTED and doc.get("uid") and not doc.get("launch")
            if doc is not None and pod.pinned and doc.get("pinned") is None and JobRecord(doc).is_bare_pod:
                self._change(doc, {"pinned": pod.pinned})  # its gate is off, and it is not made anew
            if doc is not None and doc.get("gpus_per_pod"):
                continue  # a gang's pods may be on several nodes; misplaced ones are remade
            if doc is not None and new and pod.node and doc.get("pinned") is None and self._has_gpus(pod.node):
                self._change(doc, {"pinned": pod.node})

    def _place(self, doc: JobRow, uid: str, observed: ObservedCluster) -> None:
        """Pin a job before intake, so that a coordinator that starts meanwhile does not decide otherwise."""
        placed = [pod.node for pod in observed.pods.values() if pod.owner == uid and pod.alive and pod.node]
        if placed and doc.get("node") is None and not doc.get("gpus_per_pod") and self._has_gpus(placed[0]):
            self._change(doc, {"node": placed[0]})

    def _has_gpus(self, node: str | None) -> bool:
        return bool(self._store.list("gpus", {"node": node}))

    def _hold_back(self, observed: ObservedCluster, jobs: Mapping[str, JobRow]) -> None:
        """Hold jobs back whose pod Volcano does not make: suspended ones, and those whose earlier pod is stuck."""
        left = {pod.owner: pod for pod in observed.pods.values() if pod.leaving and not pod.deleted and not pod.ended}
        for doc in jobs.values():
            origin = doc.get("volcano") if doc.get("origin") == "volcano" else None
            if not isinstance(origin, dict) or not doc.get("uid"):
                continue
            uid = str(origin.get("uid"))
            why = _held_back(left.get(uid), observed.jobs.get(uid, {})) if doc.get("state") == s.SUBMITTED else None
            if why != doc.get("held_back"):
                self._change(doc, {"held_back": why, **({"message": why} if why else {})})

    def _change(self, doc: JobRow, changes: JobChanges) -> None:
        try:
            self._store.update("jobs", doc["_id"], {"version": doc.get("version")}, changes)
        except Conflict:
            log.info("job %s has changed; looking again", doc["_id"])


def labelled_queues(observed: ObservedCluster) -> list[str]:
    """Return the names of the queues whose jobs are reshaped."""
    return sorted(name for name, queue in observed.queues.items() if _is_labelled(queue))


def _is_labelled(queue: Mapping[str, Any]) -> bool:
    return (queue["metadata"].get("labels") or {}).get(INJECT) == "true"


TERMINATED = ("Terminating", "Terminated")
RECENT_S = 600.0  # between what ended a Volcano Job and its end: Volcano tries for some three minutes to make a pod
TOO_LATE = (
    "Its pod was there before this job was to be reshaped, so it has no sidecar and goes on as it is. "
    "To have it reshaped delete the Volcano Job and apply it again."
)
RECORD_LOST = (
    "Its record is gone from the store and cannot be written back, so it goes on as it is and is not reshaped. "
    "To have it reshaped let it end, or delete the Volcano Job and apply it again."
)


def _has_training(uid: str, observed: ObservedCluster) -> bool:
    return any(pod.owner == uid and pod.trains for pod in observed.pods.values())


def _held_back(pod: Pod | None, job: Mapping[str, Any]) -> str | None:
    if volcano_job_document.phase(job) in volcano_job_document.HALTED:
        if one_pod_jobs.kind_of(job) is not None:
            return "waits until its batch Job is resumed (spec.suspend: false)"
        return "waits until its Volcano Job is resumed (vcctl job resume)"
    return f"waits until its earlier pod {pod.name} is gone from node {pod.node}" if pod is not None else None


def _expressions(webhook: Mapping[str, Any]) -> list[Doc]:
    return list((webhook.get("objectSelector") or {}).get("matchExpressions") or [])
