"""Replaces pods that were made while no launcher answered: they wait with a gate, without a sidecar.

Volcano makes a pod anew that is deleted, and the webhook injects that one. Promises: a pod without our gate is never
touched; a Volcano Job whose own policy would end it for a lost pod keeps its pod, and its user is told; one Volcano Job
loses a pod at most every few seconds, should the webhook still not be reached. Called by `launch_service.py`.
"""

from __future__ import annotations

import logging
from typing import Any

from coordinator.ports import Clock
from launcher.admission.gate import has_gate
from launcher.cluster.api import KubernetesApi
from launcher.cluster.controllers import volcano_job_document
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.pods.pod_state import ObservedCluster

Doc = dict[str, Any]

AGAIN_S = 10.0

log = logging.getLogger(__name__)


class GatedPods:
    """`turn` deletes gated pods, so that they are made again."""

    def __init__(self, cluster: KubernetesApi, clock: Clock, events: EventWriter) -> None:
        self._cluster = cluster
        self._clock = clock
        self._events = events
        self._replaced: dict[str, float] = {}  # by pod's place in its Volcano Job: when its pod was deleted last

    def turn(self, observed: ObservedCluster) -> None:
        now = self._clock.now()
        self._replaced = {place: at for place, at in self._replaced.items() if now - at < AGAIN_S}
        for pod in observed.pods.values():
            if pod.deleted or pod.leaving or pod.node is not None or not has_gate(pod.spec):
                continue
            place = f"{pod.namespace}/{pod.name}"
            job = observed.jobs.get(str(pod.owner))
            if job is None or place in self._replaced:
                continue
            if policy := volcano_job_document.ends_with_a_pod(job):
                self._events.write(job, "WaitsForSidecar", _is_left(pod.name, policy), warning=True)
                continue
            self._replaced[place] = now
            log.info("replacing pod %s, which was made while no launcher answered", place)
            self._cluster.delete("Pod", pod.name, pod.namespace, pod.uid)


def _is_left(pod: str, policy: str) -> str:
    return (
        f"Pod {pod} was made while no launcher answered, so it waits without a sidecar. Deleting it would end this "
        f"Volcano Job by its policy {policy}: delete the Volcano Job and apply it again, without that policy."
    )
