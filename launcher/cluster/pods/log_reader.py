"""Runs log readers: short-lived pods that serve the log of a job whose own pods are gone (table `readers`).

Promises: one reader per job, at most `MOST` in all; each mounts only its job's folder of the claim, read-only, under
the rights of a sidecar; it ends by itself after `LONGEST_S`, and is removed after `IDLE_S` without a request, or when
its document is gone. What hinders it becomes a sentence in its document. `next_step` decides, without I/O. Called by
`launch_service.py` at each turn. The coordinator reads them by `coordinator.adapters.logs`.
"""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coordinator.errors import Conflict, Fatal, Rejected, ReshapeError
from coordinator.model import pod_fields as about_pods
from coordinator.model.records import JobRecord
from coordinator.ports import Clock, Store
from launcher.admission import inject as pods
from launcher.admission.inject import PodSettings
from launcher.cluster.api import KubernetesApi
from launcher.cluster.pods.job_spec import PART_OF, output_of
from launcher.cluster.pods.pod_state import ObservedCluster, Pod
from launcher.names import JOB, is_launch_of, job_name
from sidecar import protocol

Doc = dict[str, Any]

TABLE = "readers"
LAUNCH = 0  # launch number of a job's reader: those of trainings begin with 1
COMPONENT, READER = "app.kubernetes.io/component", "log-reader"
COMMAND = [pods.PYTHON, "-I", "-m", "sidecar.reader", "--keys", pods.KEYS]
MOST = 8
LONGEST_S = 120
IDLE_S = 10.0
COMES_UP_S = 45.0  # after which the reason why it does not serve is written

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CreateReader:
    """Create the reader's pod; it waits for its Secret."""


@dataclass(frozen=True)
class ApplyReaderSecret:
    """Apply the Secret, which is owned by the pod and deleted with it."""

    pod: Pod


@dataclass(frozen=True)
class DeleteReader:
    """Delete the pod; the next turn decides whether to create another one."""

    pod: Pod


@dataclass(frozen=True)
class WriteReader:
    """Write these changes into its document."""

    changes: Doc


@dataclass(frozen=True)
class DeleteReaderDocument:
    """Delete its document."""


Step = CreateReader | ApplyReaderSecret | DeleteReader | WriteReader | DeleteReaderDocument


def next_step(record: Doc, pod: Pod | None, idle_s: float, waits_s: float) -> Step | None:
    """Return the next step of one reader, or None.

    `pod`: its pod, if there is one; `idle_s`: since the last request; `waits_s`: since that pod was first observed.
    """
    serves = pod is not None and pod.phase == "Running" and not pod.leaving
    if record.get("ip") and not serves:
        return WriteReader({"ip": None})
    if pod is not None and pod.leaving:
        return None
    if idle_s > IDLE_S or record.get("failure") is not None:
        return DeleteReader(pod) if pod is not None else DeleteReaderDocument() if idle_s > IDLE_S else None
    if pod is None:
        return CreateReader()
    if pod.finished:  # at its deadline, or refused by its node; any other failure would repeat itself
        broken = pod.trouble if pod.phase == "Failed" and not pod.status.get("reason") else None
        return WriteReader({"failure": broken}) if broken else DeleteReader(pod)
    if record.get("unlocked") != pod.uid:
        return ApplyReaderSecret(pod)
    if serves and pod.status.get("podIP") != record.get("ip"):
        return WriteReader({"ip": pod.status.get("podIP")})
    why = pod.trouble or (pod.unplaced or "its reader does not start" if waits_s > COMES_UP_S else None)
    return WriteReader({"failure": why}) if why and not serves else None


class LogReaders:
    """Reconciles all readers, in the launcher's one thread."""

    def __init__(
        self,
        store: Store,
        cluster: KubernetesApi,
        clock: Clock,
        settings: PodSettings,
        master_key: bytes,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        """`namespaces`: those that are watched; none: all."""
        self._store, self._cluster, self._clock, self._namespaces = store, cluster, clock, namespaces
        self._settings, self._master_key = settings, master_key
        self._asked: dict[str, tuple[object, float]] = {}  # `asked` of each document, and since when
        self._since: dict[str, float] = {}  # when each pod was first seen
        self._room = MOST  # readers that may still be made in this turn

    def turn(self, observed: ObservedCluster) -> None:
        records = {str(record["_id"]): record for record in self._store.list(TABLE)}
        there = [pod for pod in observed.pods.values() if _is_reader(pod) and not pod.deleted]
        self._room = MOST - len(there)
        self._forget(records.keys(), {pod.uid for pod in there})
        for name, record in records.items():
            try:
                self._tend(name, record, self._reader(record, there))
            except Conflict:
                continue  # its document has changed
            except ReshapeError as error:
                log.warning("log of %s: %s", name, error)
            except Exception:  # a job's `pod` may hold anything
                log.exception("log of %s", name)
        for pod in there:
            if pod.name not in records and not pod.leaving:
                self._cluster.delete("Pod", pod.name, pod.namespace, pod.uid)

    def _reader(self, record: Doc, there: list[Pod]) -> Pod | None:
        """Return its pod in its job's namespace: a foreign pod of that name elsewhere gets no key."""
        named = [pod for pod in there if pod.name == record["_id"]]
        job = self._job(record) if named else None
        return next((pod for pod in named if job is None or pod.namespace == self._namespace(job)), None)

    def _namespace(self, job: JobRecord) -> str:
        return str(job.doc.get("namespace") or self._settings.namespace)

    def _forget(self, names: Set[str], uids: Set[str]) -> None:
        """Drop the memory of all readers and pods but these."""
        self._asked = {name: asked for name, asked in self._asked.items() if name in names}
        self._since = {uid: since for uid, since in self._since.items() if uid in uids}

    def _tend(self, name: str, record: Doc, pod: Pod | None) -> None:
        now, asked = self._clock.now(), record.get("asked")
        if name not in self._asked or self._asked[name][0] != asked:
            self._asked[name] = asked, now
        waits_s = 0.0 if pod is None else now - self._since.setdefault(pod.uid, now)
        step = next_step(record, pod, now - self._asked[name][1], waits_s)
        match step:
            case CreateReader() if self._room > 0:
                self._room -= 1
                self._make(record)
            case ApplyReaderSecret():
                self._unlock(record, step.pod)
            case DeleteReader():
                self._cluster.delete("Pod", step.pod.name, step.pod.namespace, step.pod.uid)
            case WriteReader():
                self._note(record, step.changes)
            case DeleteReaderDocument():
                self._store.delete(TABLE, record["_id"], {"version": record.get("version")})

    def _note(self, record: Doc, changes: Doc) -> None:
        self._store.update(TABLE, record["_id"], {"version": record.get("version")}, changes)

    def _make(self, record: Doc) -> None:
        job = self._job(record)
        if job is None:
            self._note(record, {"failure": "its job document is gone"})
            return
        if self._namespaces and (where := self._namespace(job)) not in self._namespaces:
            self._note(record, {"failure": f"namespace {where} is not one of those in RESHAPE_NAMESPACES"})
            return
        try:
            with suppress(Conflict):  # made already, and not observed yet
                self._cluster.create(pod_of(job, str(record["_id"]), self._settings))
        except (Rejected, Fatal) as error:  # a quota, Pod Security, or no right to make pods there
            self._note(record, {"failure": str(error)})

    def _unlock(self, record: Doc, pod: Pod) -> None:
        if (job := self._job(record)) is not None:
            self._cluster.apply(secret_of(job, pod, self._settings, self._master_key))
        self._note(record, {"unlocked": pod.uid})

    def _job(self, record: Doc) -> JobRecord | None:
        doc = self._store.get("jobs", record.get("job"))
        return None if doc is None else JobRecord(doc)


def pod_of(job: JobRecord, name: str, settings: PodSettings) -> Doc:
    """Return the reader's pod, with its job's tolerations, groups and pull secrets. `Rejected` without a claim."""
    claim = job.doc.get("checkpoint_claim") or settings.checkpoint_claim
    if claim is None:
        raise Rejected("it has no checkpoint_claim, so its log went with its pod")
    theirs = about_pods.pod_spec(job.doc)
    rights = theirs.get("securityContext") or {}
    groups = [*(rights.get("supplementalGroups") or []), *([rights["fsGroup"]] if rights.get("fsGroup") else [])]
    about = job_name(job.id, job.uid)
    labels = {JOB: about, COMPONENT: READER, "app.kubernetes.io/part-of": PART_OF}
    mounts = [
        {"name": pods.CLAIM_VOLUME, "mountPath": pods.CHECKPOINTS, "subPath": about, "readOnly": True},
        {"name": pods.KEYS_VOLUME, "mountPath": pods.KEYS, "readOnly": True},
    ]
    reader = {
        "name": "reader",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": list(COMMAND),
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
        "securityContext": pods.rights(),
        "volumeMounts": mounts,
    }
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LONGEST_S,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "supplementalGroups": groups},
        "containers": [reader],
        "volumes": [
            {"name": pods.CLAIM_VOLUME, "persistentVolumeClaim": {"claimName": claim}},
            {"name": pods.KEYS_VOLUME, "secret": {"secretName": name}},
        ],
        **{field: theirs[field] for field in ("tolerations", "imagePullSecrets") if theirs.get(field)},
    }
    namespace = job.doc.get("namespace") or settings.namespace
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def secret_of(job: JobRecord, pod: Pod, settings: PodSettings, master_key: bytes) -> Doc:
    """Return the reader's Secret. Its key gives access to this log only."""
    launch = {
        "job_id": job.id,
        "launch": LAUNCH,
        "coordinator": settings.coordinator,
        "output": output_of(0),
        "port": pods.PORT,
        "pod": True,
    }
    content = {
        "launch.json": json.dumps(launch).encode(),
        "launch.key": protocol.launch_key(master_key, job.uid, LAUNCH),
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    about = {"name": pod.name, "namespace": pod.namespace, "labels": _labels(pod), "ownerReferences": [owner]}
    data = {name: b64encode(text).decode() for name, text in content.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": about, "type": "Opaque", "data": data}


def _is_reader(pod: Pod) -> bool:
    """True if the pod is a reader, by labels and name: a foreign pod with copied labels has another name."""
    job, name = str(_labels(pod).get(JOB)), pod.name
    return _labels(pod).get(COMPONENT) == READER and is_launch_of(job, name) and name.endswith(f"-l{LAUNCH}")


def _labels(pod: Pod) -> Mapping[str, Any]:
    return pod.meta.get("labels") or {}
