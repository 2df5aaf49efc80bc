"""Reads from a Pod object where it runs, whether its trainer has certainly ended, and what hinders it. Pure.

Only the kubelet's status proves that a container has ended (`reliability.md` 5): an object that vanished, a lost node
or a pod that another component declared failed proves nothing. Called by the launcher's controllers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.model.last_words import quoted
from launcher.admission.gate import waits_for_node
from launcher.admission.inject import (
    CHECKPOINTS,
    GPU,
    INIT_CONTAINER,
    NONE,
    SIDECAR_CONTAINER,
    VISIBLE,
    has_seat,
    node_of,
)
from launcher.admission.kinds import is_batch_job
from launcher.names import (
    CONTAINER,
    DATASET,
    FETCHER,
    INJECT,
    LAUNCH,
    VOLCANO_JOBS,
    is_made_by_launcher,
    is_secret_of_pod,
)

Doc = dict[str, Any]

NEEDS_PYTHON = "the image needs python3, 3.8 or newer, on its PATH"
# Waiting for any of these gets nowhere by itself; `ErrImagePull` alone may.
STUCK = frozenset(
    {
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerError",
        "CreateContainerConfigError",
        "RunContainerError",
        "CrashLoopBackOff",
    }
)
NO_IMAGE = (
    " (it is the image of volcano-reshape, which the node must be able to pull for this namespace, too: give the pod "
    "imagePullSecrets for its registry, or make the image public within the cluster)"
)
NEVER_STARTED = frozenset({"StartError", "ContainerCannotRun"})
# No trace of the container was found: proof only once the kubelet has given the pod its last phase.
UNKNOWN = "ContainerStatusUnknown"
GARBAGE = "DeletionByPodGC"  # PodGC marks pods of lost nodes as failed without asking their kubelet
# A kubelet that refuses a pod starts nothing of it.
REFUSALS = frozenset({"NodeAffinity", "UnexpectedAdmissionError", "TopologyAffinityError", "NodePorts"})
DISRUPTED = "DisruptionTarget"  # condition of a pod that an eviction, a taint or a pod of more priority ends
FINISHED = frozenset({"Succeeded", "Failed"})
MESSAGE_LENGTH = 300
FETCHES_ON = "its data set is still being fetched, and the next launch goes on with that"
FETCHES_ANEW = (
    "its data set is still being fetched: name a PersistentVolumeClaim in dataset_claim, where the next launch goes on "
    "with that, or make RESHAPE_INIT_TIMEOUT_S longer"
)


@dataclass(frozen=True)
class Pod:
    """One Pod object in its last observed state."""

    doc: Mapping[str, Any]
    deleted: bool = False  # whether the object is gone
    sure: bool = True  # whether `doc` is its final state; else it may have changed before it vanished

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.doc.get("metadata") or {}

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.doc.get("spec") or {}

    @property
    def status(self) -> Mapping[str, Any]:
        return self.doc.get("status") or {}

    @property
    def uid(self) -> str:
        return str(self.meta.get("uid"))

    @property
    def name(self) -> str:
        return str(self.meta.get("name"))

    @property
    def namespace(self) -> str:
        return str(self.meta.get("namespace"))

    @property
    def launch(self) -> str | None:
        """Name of the Secret that it waits for."""
        return (self.meta.get("annotations") or {}).get(LAUNCH)

    @property
    def owner(self) -> str | None:
        """The uid of its user's object: the Volcano Job or batch Job that made it, or the bare pod itself."""
        owners = self.meta.get("ownerReferences") or []
        found = next((str(o.get("uid")) for o in owners if str(o.get("apiVersion")).startswith(VOLCANO_JOBS)), None)
        of_record = any(is_batch_job(o) and o.get("name") == self.launch for o in owners)  # made by the launcher
        asked = of_record or (self.meta.get("labels") or {}).get(INJECT) == "true"
        if found is not None or self.launch is None or not asked:
            return found
        batch = next((str(o.get("uid")) for o in owners if is_batch_job(o)), None)
        return batch if batch is not None or owners else self.uid

    @property
    def has_own_secret(self) -> bool:
        """True if the Secret that it waits for was made up for it: a pod may name any, and only such a one is written.

        One whose name the API server made up was injected before it had that, so its Secret has the beginning.
        """
        begins = str(self.meta.get("generateName") or self.name)
        names = [self.name, *([begins] if self.name.startswith(begins) else [])]
        return self.launch is not None and any(is_secret_of_pod(name, self.launch) for name in names)

    @property
    def waits_for_node(self) -> bool:
        """True if it may not be scheduled before its node is decided."""
        return waits_for_node(self.spec)

    @property
    def node(self) -> str | None:
        return self.spec.get("nodeName") or None

    @property
    def pinned(self) -> str | None:
        """The only node that it may go to."""
        return node_of(self.spec)

    @property
    def claim(self) -> str | None:
        """The PersistentVolumeClaim of its checkpoints."""
        return self._claim_at(CHECKPOINTS)

    @property
    def phase(self) -> str:
        return str(self.status.get("phase"))

    @property
    def leaving(self) -> bool:
        return self.deleted or "deletionTimestamp" in self.meta

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def ended(self) -> bool:
        """True if it is certain that no trainer of it runs, or ever will."""
        if self.deleted and self.sure and self.node is None:
            return True
        state = self._state
        if self.finished:
            return "running" not in state and not self._given_up
        stays_down = self.leaving or self.spec.get("restartPolicy") == "Never"
        return stays_down and "terminated" in state and state["terminated"].get("reason") != UNKNOWN

    @property
    def alive(self) -> bool:
        """True if it is neither being deleted nor ended."""
        return not self.leaving and not self.ended

    @property
    def trouble(self) -> str | None:
        """Return why it does not start or has ended, as a sentence."""
        if self._refused:
            why = self.status.get("message") or self.status.get("reason")
            return f"node {self.node} refused its pod: {_short(why)}"
        if self.phase == "Failed" and (why := self.evicted):
            return why
        return next(self._troubles(), None)

    @property
    def evicted(self) -> str | None:
        """Return who took it from its node and why, as a sentence; None if nobody did."""
        if self.status.get("reason") == "Evicted":  # by its kubelet
            return _sentence(f"its pod was evicted from node {self.node}", self.status)
        said = next((c for c in self.status.get("conditions") or [] if c.get("type") == DISRUPTED), None)
        if said is None or said.get("status") != "True":
            return None
        return _sentence(f"its pod was evicted from node {self.node}", said)

    @property
    def unplaced(self) -> str | None:
        """Return why Volcano has found no node for it yet, or that its data set is still being fetched."""
        if self._fetches:
            return FETCHES_ON if self._fetches_on else FETCHES_ANEW
        conditions = self.status.get("conditions") or []
        said = next((c for c in conditions if c.get("type") == "PodScheduled" and c.get("status") == "False"), None)
        if said is None or self.node or self.waits_for_node:
            return None
        scheduler = "Volcano" if self.spec.get("schedulerName", "volcano") == "volcano" else self.spec["schedulerName"]
        return _sentence(f"{scheduler} finds no place for its pod", said)

    def holds(self, gpu_ids: Sequence[str]) -> bool:
        """True if it was made for these GPUs, or for so many where a device plugin chooses them."""
        container = self.trainer
        named = {e.get("name"): e.get("value") for e in container.get("env") or []}.get(VISIBLE)
        if named is not None:
            return set(str(named).split(",")) - {NONE} == set(gpu_ids)
        return str(((container.get("resources") or {}).get("limits") or {}).get(GPU)) == str(len(gpu_ids))

    def record(self) -> Doc:
        """Return the fields of it that a launch's document records."""
        ip, vanished = self.status.get("podIP"), self.deleted and (self._given_up or not self.finished)
        phase = "Deleted" if vanished else self.phase
        about = {"name": self.name, "namespace": self.namespace, "uid": self.uid, "node": self.node}
        seat = {"seat": True} if has_seat(self.spec) else {}
        return {**about, "ip": ip, "phase": phase, **seat}

    @property
    def trainer(self) -> Mapping[str, Any]:
        """The container that trains."""
        return next((c for c in self.spec.get("containers") or [] if c.get("name") == self._trainer), {})

    @property
    def trains(self) -> bool:
        """True if that container runs."""
        return "running" in self._state

    @property
    def qos_class(self) -> str:
        return str(self.status.get("qosClass"))

    @property
    def _fetches(self) -> bool:
        about = self.status.get("initContainerStatuses") or []
        return any(one.get("name") == FETCHER and "running" in (one.get("state") or {}) for one in about)

    @property
    def _fetches_on(self) -> bool:
        """True if what it has fetched outlives it."""
        return self._claim_at(DATASET) is not None

    def _claim_at(self, path: str) -> str | None:
        """The PersistentVolumeClaim that is mounted there; its volume may be the pod's own, with any name."""
        mounts = [mount for each in self.spec.get("containers") or [] for mount in each.get("volumeMounts") or []]
        names = {mount.get("name") for mount in mounts if mount.get("mountPath") == path}
        found: Mapping[str, Any] = next((v for v in self.spec.get("volumes") or [] if v.get("name") in names), {})
        return (found.get("persistentVolumeClaim") or {}).get("claimName")

    @property
    def _refused(self) -> bool:
        reason = str(self.status.get("reason"))
        known = reason in REFUSALS or reason.startswith("OutOf")
        return self.phase == "Failed" and known and not self.status.get("containerStatuses")

    @property
    def _trainer(self) -> str:
        containers = self.spec.get("containers") or [{}]
        return str((self.meta.get("annotations") or {}).get(CONTAINER) or containers[0].get("name"))

    @property
    def _state(self) -> Mapping[str, Any]:
        """The state of the trainer's container: waiting, running or terminated; empty if it was never reported."""
        for status in self.status.get("containerStatuses") or []:
            if status.get("name") == self._trainer:
                return status.get("state") or {}
        return {}

    @property
    def _given_up(self) -> bool:
        """True if its phase was set by PodGC instead of its kubelet."""
        return any(c.get("reason") == GARBAGE for c in self.status.get("conditions") or [])

    def _troubles(self) -> Iterator[str]:
        statuses = [*(self.status.get("initContainerStatuses") or []), *(self.status.get("containerStatuses") or [])]
        for status in statuses:
            name, state = status.get("name"), status.get("state") or {}
            waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
            if waiting.get("reason") in STUCK:
                before = (status.get("lastState") or {}).get("terminated") or {}
                sentence = _sentence(f"its container {name} does not start", {**waiting, **_worded(before)})
                yield sentence + (NO_IMAGE if _lacks_our_image(name, waiting) else "")
            elif ended.get("reason") in NEVER_STARTED:
                yield _sentence(f"its container {name} could not be started", ended)
            elif ended.get("exitCode") and (name == self._trainer or not _sidecar(self.spec, name)):
                code = ended["exitCode"]
                yield _sentence(f"its container {name} ended with exit code {code}", {"message": ended.get("message")})
            elif name == self._trainer and ended:
                yield f"its container {name} has ended"


@dataclass(frozen=True)
class ObservedCluster:
    """The content of the informers, for one turn of the service."""

    pods: Mapping[str, Pod] = field(default_factory=dict)  # by uid; also those that vanished and were not handled yet
    jobs: Mapping[str, Doc] = field(default_factory=dict)  # Volcano Jobs by uid; batch Jobs and bare pods as such
    queues: Mapping[str, Doc] = field(default_factory=dict)  # by name
    has_volcano_jobs: bool = True  # whether Volcano Jobs are watched, so that one that is not here may be gone

    def job_named(self, namespace: str, name: str) -> Doc | None:
        """Return the Volcano Job of that name, or the batch Job that the launcher made; users' may have the same."""
        for job in self.jobs.values():
            named = job["metadata"].get("namespace") == namespace and job["metadata"]["name"] == name
            if named and job.get("kind") != "Pod" and (not is_batch_job(job) or is_made_by_launcher(job)):
                return job
        return None


def _sidecar(spec: Mapping[str, Any], name: object) -> bool:
    """True if it is a native sidecar container, whose exit the kubelet ignores."""
    beside = [c.get("name") for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    return name in beside


def _lacks_our_image(container: object, waiting: Mapping[str, Any]) -> bool:
    return container in (INIT_CONTAINER, SIDECAR_CONTAINER) and "Image" in str(waiting.get("reason"))


def _worded(ended: Mapping[str, Any]) -> Doc:
    return {"message": ended["message"]} if ended.get("message") else {}


def _sentence(what: str, why: Mapping[str, Any]) -> str:
    whole = str(why.get("message") or why.get("reason") or "")
    said = _short(whole)
    python = f" ({NEEDS_PYTHON})" if "python3" in whole else ""
    return f"{what}: {said}{python}" if said else what


def _short(text: object) -> str:
    return quoted(str(text), MESSAGE_LENGTH)
