"""Users' Volcano Jobs and Queues, and what follows from them in the store: the second door.

Each turn looks at how things stand, and mends what differs: a Volcano Job without a job document gets one, a
document whose Volcano Job is gone is cancelled, a job that has ended takes its Volcano Job along. Written twice is
written once: `_id`s are derived from uids. Called by `service.py`, in its one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from coordinator.errors import Conflict, Rejected, ReshapeError
from coordinator.model import states as s
from coordinator.ports import Clock, Store
from coordinator.scheduling.intake import WAITS_FOR_ITS_TURN
from launcher.admission.inject import Injection, PodSettings, inject
from launcher.cluster.api import KubernetesApi
from launcher.cluster.controllers import volcano_job_document
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.pods.pod_state import ObservedCluster as Shown
from launcher.cluster.pods.pod_state import Pod
from launcher.names import DEVICES, INJECT

Doc = dict[str, Any]

WEBHOOKS, BY_QUEUE = "reshape-inject", "queue.volcano-reshape.io"
QUEUE_LABEL = "volcano.sh/queue-name"
NO_QUEUE = "none.volcano-reshape"  # no queue can be named so: a selector needs a value
MODES = ("shared", "recreate")
WAITS_S = 600.0  # between two events that say why the same job waits
SELECT_S = 2.0  # how often the webhook's selector is compared: each `kubectl apply` of the manifests resets it

log = logging.getLogger(__name__)


class VolcanoJobController:
    """`turn` with what the cluster shows and the job documents that are not closed, by their `_id`."""

    def __init__(
        self, store: Store, cluster: KubernetesApi, clock: Clock, news: EventWriter, settings: PodSettings,
        patience_s: float,
        namespaces: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """`namespaces`: those that are watched; none: all."""
        self._namespaces = namespaces
        self._store, self._cluster, self._clock, self._news = store, cluster, clock, news
        self._settings, self._patience_s = settings, patience_s
        self._inserted: set[str] = set()
        self._refused: dict[str, str] = {}  # resource version of each Volcano Job that was refused
        self._ended: dict[str, float] = {}  # when a Volcano Job was first seen without a living job
        self._waits: dict[str, float] = {}  # when it was told why a Volcano Job waits
        self._queues: dict[str, Doc] | None = None  # as written
        self._select_at = 0.0
        self._selects = True  # whether there was a webhook to select for

    def turn(self, shown: Shown, jobs: Mapping[str, Doc]) -> None:
        labelled = self._keep_queues(shown, jobs)
        for uid, job in sorted(shown.jobs.items()):
            self._tend(uid, job, labelled, shown, jobs)
        self._cancel_orphans(shown, jobs)
        self._pin(shown, jobs)
        self._hold_back(shown, jobs)
        self._drop_refused(shown)
        self._forget(shown)

    def _forget(self, shown: Shown) -> None:
        """What is kept of any Volcano Job but these."""
        known = {volcano_job_document.key(uid) for uid in shown.jobs}
        self._ended = {uid: since for uid, since in self._ended.items() if uid in shown.jobs}
        self._waits = {uid: at for uid, at in self._waits.items() if uid in shown.jobs}
        self._refused = {key: version for key, version in self._refused.items() if key in known}
        self._inserted &= known

    def _tend(self, uid: str, job: Doc, labelled: list[str], shown: Shown, jobs: Mapping[str, Doc]) -> None:
        """A Volcano Job that we stumble over hinders no other."""
        try:
            key = volcano_job_document.key(uid)
            if said := volcano_job_document.mistaken(job):
                self._news.tell(job, "LabelIgnored", said, warning=True)
            if volcano_job_document.ours(job, labelled) or key in jobs or key in self._inserted:
                self._keep_job(uid, job, shown, jobs)
            elif said := volcano_job_document.forgotten(job, labelled):
                self._news.tell(job, "NotLabelled", said, warning=True)
        except ReshapeError as error:
            log.warning("Volcano Job %s: %s", job["metadata"]["name"], error)
        except Exception:
            log.exception("Volcano Job %s", uid)

    # queues

    def _keep_queues(self, shown: Shown, jobs: Mapping[str, Doc]) -> list[str]:
        """Table `queues`, and which pods the webhook is asked about. Returns the labelled ones.

        A job that lives stays ours, though its queue has lost the label: its next pod would see every GPU.
        """
        wanted = {name: self._queue(name, queue) for name, queue in shown.queues.items()}
        labelled = sorted(name for name, queue in wanted.items() if queue["inject"])
        if wanted != self._queues:
            self._write_queues(wanted)
        if wanted != self._queues or self._clock.now() >= self._select_at:
            lives = [job for uid, job in shown.jobs.items() if volcano_job_document.key(uid) in jobs]
            theirs = {volcano_job_document.queue_of(job) for job in lives if not volcano_job_document.labelled(job)}
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
            said = f"The annotation {DEVICES} must be {' or '.join(MODES)}, not {str(devices)[:40]!r}; taken as shared."
            self._news.tell(queue, "DevicesUnknown", said, warning=True)
            devices = "shared"
        return {"_id": name, "inject": (meta.get("labels") or {}).get(INJECT) == "true", "devices": devices}

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

    def _keep_job(self, uid: str, job: Doc, shown: Shown, jobs: Mapping[str, Doc]) -> None:
        key = volcano_job_document.key(uid)
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
                self._news.tell(job, "JobRefused", "This job is not let in: " + "; ".join(found) + ".", warning=True)
            elif not doc.get("uid"):
                self._place(doc, uid, shown)
        elif doc is None and key not in self._inserted:
            if volcano_job_document.pods(job) and not any(pod.owner == uid for pod in shown.pods.values()):
                self._news.tell(job, "TooLate", TOO_LATE, warning=True)
            else:
                self._insert(key, job)
        else:  # it has ended, or its user deleted the document, which means the same
            self._end(uid, job)

    def _tell_why_it_waits(self, uid: str, job: Doc, doc: Doc) -> None:
        """Where its user looks: Volcano itself can only say that the gang is unschedulable."""
        reason, now = doc.get("message"), self._clock.now()
        waits = doc.get("state") == s.SUBMITTED and isinstance(reason, str) and reason != WAITS_FOR_ITS_TURN
        if waits and now - self._waits.get(uid, -WAITS_S) >= WAITS_S:
            self._waits[uid] = now
            self._news.tell(job, "Waits", str(reason))

    def _insert(self, key: str, job: Doc) -> None:
        if self._refused.get(key) == str(job["metadata"].get("resourceVersion")):
            return
        try:
            self._check(job)
            taken = bool(self._store.list("jobs", {"job_id": volcano_job_document.job_id(job)}))
            doc = volcano_job_document.document(job, taken)
            self._store.insert("jobs", doc)
            if said := volcano_job_document.fixed(job, doc):
                self._news.tell(job, "KeepsItsSize", said, warning=True)
        except Rejected as refused:
            self._refused[key] = str(job["metadata"].get("resourceVersion"))
            reason = getattr(refused, "reason", "JobRefused")
            self._news.tell(job, reason, str(refused), warning=True)
            return
        except Conflict:
            log.info("job %s was inserted already", key)
        self._inserted.add(key)

    def _check(self, job: Doc) -> None:
        """What the webhook would refuse is said here, where the user looks: on the Volcano Job."""
        for task in (job.get("spec") or {}).get("tasks") or []:
            template = task.get("template") or {}
            meta, queue = template.get("metadata") or {}, volcano_job_document.queue_of(job)
            devices = (self._queues or {}).get(queue, {}).get("devices", "shared")
            trial = Injection(job_id="trial", job="trial", launch="trial", devices=devices, emulated=True)
            inject(template.get("spec") or {}, meta, trial, self._settings)

    def _end(self, uid: str, job: Doc) -> None:
        """Its pods get time to end by themselves; then Volcano is told, because a deleted pod would be made again."""
        now = self._clock.now()
        if now - self._ended.setdefault(uid, now) < self._patience_s:
            return
        about = job["metadata"]
        owner = {"apiVersion": job["apiVersion"], "kind": "Job", "name": about["name"], "uid": uid}
        command = {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {
                "name": f"{about['name'][:200]}-reshape-end", "namespace": about.get("namespace"),
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}],
            },
            "action": "TerminateJob",
            "target": {**owner, "controller": True},
            "reason": "JobEnded",
            "message": "The job has ended in volcano-reshape.",
        }  # fmt: skip
        try:
            self._cluster.create(command)
        except Conflict:
            return  # Volcano has not taken it yet
        finally:
            self._ended[uid] = now  # asked again only after as long
        self._news.tell(job, "Ended", "The job has ended, so its pods are stopped.")

    def _cancel_orphans(self, shown: Shown, jobs: Mapping[str, Doc]) -> None:
        """A deleted or terminated Volcano Job is a cancelled job."""
        for doc in jobs.values():
            origin = doc.get("volcano") if doc.get("origin") == "volcano" else None
            if not isinstance(origin, dict) or doc.get("cancel") or doc.get("state") in s.ENDED:
                continue
            if self._namespaces and origin.get("namespace") not in self._namespaces:
                continue  # nobody looks there any more: that says nothing about it
            job = shown.jobs.get(str(origin.get("uid")))
            if job is None and self._there(origin):
                continue  # our watch is behind
            if job is None or "deletionTimestamp" in job["metadata"] or volcano_job_document.phase(job) in TERMINATED:
                self._change(doc, {"cancel": True})

    def _there(self, origin: Mapping[str, Any]) -> bool:
        """Whether this very Volcano Job exists, by the API server's own word: cancelled is for ever."""
        found = self._cluster.get("Job", str(origin.get("name")), str(origin.get("namespace")))
        return found is not None and found["metadata"].get("uid") == origin.get("uid")

    def _drop_refused(self, shown: Shown) -> None:
        """Documents that intake did not let in go with their Volcano Jobs, so that their names are free again."""
        for doc in self._store.list("jobs", {"closed": None}):
            origin = doc.get("volcano") if doc.get("origin") == "volcano" and doc.get("problems") else None
            if isinstance(origin, dict) and origin.get("uid") not in shown.jobs and not self._there(origin):
                try:
                    self._store.delete("jobs", doc["_id"], {"version": doc.get("version")})
                except Conflict:
                    log.info("job %s has changed; looking again", doc["_id"])

    def _pin(self, shown: Shown, jobs: Mapping[str, Doc]) -> None:
        """Volcano started the pod without asking, while nobody answered it: the job waits for GPUs there.

        A job that was launched before, or whose pod is where no GPU is, gets another pod where it is decided to run.
        """
        for pod in shown.pods.values():
            doc = jobs.get(volcano_job_document.key(pod.owner)) if pod.owner and pod.alive and pod.node else None
            new = doc is not None and doc.get("state") == s.SUBMITTED and doc.get("uid") and not doc.get("launch")
            if doc is not None and doc.get("gpus_per_pod"):
                continue  # its pods may be on several nodes; those that are not where they shall be are made again
            if doc is not None and new and doc.get("pinned") is None and self._has_gpus(pod.node):
                self._change(doc, {"pinned": pod.node})

    def _place(self, doc: Doc, uid: str, shown: Shown) -> None:
        """The same before it is let in, so that no coordinator that comes up meanwhile decides otherwise."""
        placed = [pod.node for pod in shown.pods.values() if pod.owner == uid and pod.alive and pod.node]
        if placed and doc.get("node") is None and not doc.get("gpus_per_pod") and self._has_gpus(placed[0]):
            self._change(doc, {"node": placed[0]})

    def _has_gpus(self, node: str | None) -> bool:
        return bool(self._store.list("gpus", {"node": node}))

    def _hold_back(self, shown: Shown, jobs: Mapping[str, Doc]) -> None:
        """While Volcano makes no pod, GPUs would be held for nothing: it is suspended, or an earlier pod is stuck."""
        left = {pod.owner: pod for pod in shown.pods.values() if pod.leaving and not pod.deleted and not pod.ended}
        for doc in jobs.values():
            origin = doc.get("volcano") if doc.get("origin") == "volcano" else None
            if not isinstance(origin, dict) or not doc.get("uid"):
                continue
            uid = str(origin.get("uid"))
            why = _held_back(left.get(uid), shown.jobs.get(uid, {})) if doc.get("state") == s.SUBMITTED else None
            if why != doc.get("held_back"):
                self._change(doc, {"held_back": why, **({"message": why} if why else {})})

    def _change(self, doc: Doc, changes: Doc) -> None:
        try:
            self._store.update("jobs", doc["_id"], {"version": doc.get("version")}, changes)
        except Conflict:
            log.info("job %s has changed; looking again", doc["_id"])


TERMINATED = ("Terminating", "Terminated")
TOO_LATE = (
    "Its pod was there before anybody wanted this job reshaped, so it has no sidecar and goes on as it is. "
    "To have it reshaped delete the Volcano Job and apply it again."
)


def _held_back(pod: Pod | None, job: Mapping[str, Any]) -> str | None:
    if volcano_job_document.phase(job) in volcano_job_document.HALTED:
        return "waits until its Volcano Job is resumed (vcctl job resume)"
    return f"waits until its earlier pod {pod.name} is gone from node {pod.node}" if pod is not None else None


def _expressions(webhook: Mapping[str, Any]) -> list[Doc]:
    return list((webhook.get("objectSelector") or {}).get("matchExpressions") or [])
