"""Resizes the living pod of a launch as `limit_rules.py` decides.

Promises: the API server is called only if something differs; a container's original CPU is stored before it is changed,
so a launcher that was killed anywhere restores it later; a pod that cannot be limited hinders no launch and is not
tried again: an Event of its Volcano Job and the job itself say why. Called by `launch_service.py` once per launch and
turn, in its thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from coordinator.errors import Fatal, Rejected
from coordinator.model.records import UNLIMITED, JobRecord, number
from coordinator.model.requirements import MAX_CORES
from coordinator.model.tables import JobRow, LaunchRow
from coordinator.ports import Clock, Store, moment_of
from launcher.cluster.api import KubernetesApi
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.pods.limit_rules import (
    Cpu,
    PodLimits,
    ResizeContainer,
    ResizePending,
    SaveOriginalCpu,
    Step,
    Unlimitable,
    steps,
)
from launcher.cluster.pods.pod_state import Pod

Doc = dict[str, Any]

AGAIN_S = 5.0  # before the same resize of the same pod is tried again
TOO_OLD = "this Kubernetes cannot resize pods: 1.33 and newer can"
NOT_FOUND = 404

log = logging.getLogger(__name__)


class PodResizer:
    """Sets and lifts CPU limits of pods."""

    def __init__(self, table: str, store: Store, cluster: KubernetesApi, clock: Clock, events: EventWriter) -> None:
        self._table, self._store, self._cluster, self._clock, self._events = table, store, cluster, clock, events
        self._asked: dict[str, tuple[Cpu, float]] = {}  # by uid of a pod

    def look(self, record: LaunchRow, pods: Iterable[Pod], job: JobRow | None, volcano: Doc | None) -> None:
        """Carry out the steps of one launch. `job`: its document, None once it is over. `Conflict`: call again."""
        known = (record.get("pod") or {}).get("uid")
        pod = next((pod for pod in pods if pod.uid == known and pod.alive and pod.trains), None)
        if job is None or pod is None or record.get("wanted") != "launch":
            return
        view = PodLimits(record, JobRecord(job), pod, self._cores(record, pod), moment_of(self._clock))
        for step in steps(view):
            record = self._do(step, record, view, volcano)

    def forget_all_but(self, pods: Iterable[str]) -> None:
        """Drop the memory of all pods but these."""
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in set(pods)}

    def _cores(self, record: LaunchRow, pod: Pod) -> float:
        """Return the cores of the pod's node, needed only where a container may get all of them back."""
        if not record.get("held"):
            return 0.0
        node = self._store.get("nodes", str(pod.node)) or {}
        return number(node.get("cores")) or MAX_CORES

    def _do(self, step: Step, record: LaunchRow, view: PodLimits, volcano: Doc | None) -> LaunchRow:
        """Carry out the step; return the launch's document as it is afterwards."""
        match step:
            case SaveOriginalCpu():
                self._asked.pop(view.pod.uid, None)
                expect = {"version": record.get("version")}
                return self._store.update(self._table, record["_id"], expect, {"held": step.held})
            case ResizeContainer():
                self._resize(step, view, volcano)
            case Unlimitable():
                self._give_up(step.why, view, volcano)
            case ResizePending():
                self._tell(volcano, "ResizeLate", f"The CPU limit of job {view.job.id} is not in force yet: {step.why}")
        return record

    def _resize(self, step: ResizeContainer, view: PodLimits, volcano: Doc | None) -> None:
        pod, now = view.pod, self._clock.now()
        before, at = self._asked.get(pod.uid, (None, 0.0))
        if before == step.cpu and now - at < AGAIN_S:
            return
        self._asked[pod.uid] = step.cpu, now
        log.info("resizing pod %s/%s: %s", pod.namespace, pod.name, step.patch["spec"]["containers"][0]["resources"])
        try:
            self._cluster.patch("Pod", pod.name, step.patch, pod.namespace, "resize")
        except (Rejected, Fatal) as refused:
            if isinstance(refused, Rejected) and refused.status == NOT_FOUND and pod.name in str(refused):
                return  # the pod is gone
            too_old = isinstance(refused, Rejected) and refused.status == NOT_FOUND
            log.warning("pod %s/%s was not resized: %s", pod.namespace, pod.name, refused)
            if view.wanted is not None:
                self._give_up(TOO_OLD if too_old else str(refused), view, volcano)

    def _give_up(self, why: str, view: PodLimits, volcano: Doc | None) -> None:
        job = view.job
        self._tell(volcano, "NotLimitable", f"The CPU of job {job.id} cannot be limited: {why}.")
        changes = {**UNLIMITED, "unlimitable": {"launch": job.launch, "why": why}}
        self._store.update("jobs", job.key, {"version": job.doc.get("version")}, changes)

    def _tell(self, volcano: Doc | None, reason: str, sentence: str) -> None:
        log.info("%s", sentence)
        if volcano is not None:
            self._events.write(volcano, reason, sentence, warning=True)
