"""Counts the cores and memory that foreign pods request on each node, which no job of ours may use.

Promises: pods that are ours, that have ended or that have no node yet count nothing; one list, then changes only; a
watch that ends continues where it was. Only a few numbers of each pod are kept. On a cluster that does not let us watch
all pods a warning is logged once and none is counted. Read by `node.py`; one thread for each watched namespace.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from coordinator.errors import ReshapeError
from launcher.cluster.api import Expired, KubernetesApi
from launcher.cluster.pods.limit_rules import amount
from launcher.cluster.pods.pod_state import Pod
from launcher.names import JOB

Doc = dict[str, Any]

WATCH_S = 300
PAUSE_S = 2.0

log = logging.getLogger(__name__)


class PodRequests(NamedTuple):
    """A pod's requests: cores and bytes."""

    cores: float = 0.0
    memory: float = 0.0


class ForeignUsage:
    """Watches the requests of foreign pods, from `start` to `stop`. `namespaces`: all if empty."""

    def __init__(self, cluster: KubernetesApi, namespaces: tuple[str, ...] = ()) -> None:
        self._watches = [_Watch(cluster, namespace) for namespace in namespaces or (None,)]

    def start(self) -> None:
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        for watch in self._watches:
            watch.stop()

    def requested(self) -> dict[str, PodRequests] | None:
        """Return the requests by node; None until every watch has read a list."""
        if not all(watch.known for watch in self._watches):
            return None
        by_node: dict[str, list[PodRequests]] = {}
        for watch in self._watches:
            for node, asked in watch.requested():
                by_node.setdefault(node, []).append(asked)
        return {node: _sum(each) for node, each in by_node.items()}


class _Watch:
    """The pods of one namespace, or (None) of all."""

    def __init__(self, cluster: KubernetesApi, namespace: str | None) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._requests_by_uid: dict[str, tuple[str, PodRequests]] = {}  # by uid of the pod
        self._since = ""
        self._told = False
        self.known = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="watch other pods", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def requested(self) -> list[tuple[str, PodRequests]]:
        with self._lock:
            return list(self._requests_by_uid.values())

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._since:
                    self._list()
                self._follow()
            except Expired:
                self._since = ""
            except ReshapeError as error:
                self._since = ""
                self._tell(error)
                self._stopping.wait(PAUSE_S)
            except Exception:  # a watch must never end for good
                self._since = ""
                log.exception("the watch of other pods")
                self._stopping.wait(PAUSE_S)

    def _tell(self, error: ReshapeError) -> None:
        if not self._told:
            log.warning("what pods of others ask for is not counted until their watch works: %s", error)
        self._told = True

    def _list(self) -> None:
        seen = self._cluster.list("Pod", self._namespace)
        found = {str(pod["metadata"]["uid"]): foreign_requests(pod) for pod in seen.items}
        with self._lock:
            self._requests_by_uid = {uid: entry for uid, entry in found.items() if entry is not None}
        self._since, self._told, self.known = seen.version, False, True

    def _follow(self) -> None:
        for event, pod in self._cluster.watch("Pod", self._since, WATCH_S, self._namespace):
            if self._stopping.is_set():
                return
            self._since = str(pod["metadata"].get("resourceVersion") or self._since)
            if event != "BOOKMARK":
                self._take(str(pod["metadata"]["uid"]), None if event == "DELETED" else foreign_requests(pod))

    def _take(self, uid: str, entry: tuple[str, PodRequests] | None) -> None:
        with self._lock:
            if entry is None:
                self._requests_by_uid.pop(uid, None)
            else:
                self._requests_by_uid[uid] = entry


def foreign_requests(doc: Mapping[str, Any]) -> tuple[str, PodRequests] | None:
    """Return the node of a foreign pod and what it requests there; None if it is ours, has ended or has no node."""
    pod = Pod(doc)
    if pod.node is None or pod.finished or JOB in (pod.meta.get("labels") or {}):
        return None
    return pod.node, PodRequests(requested(pod.spec, "cpu"), requested(pod.spec, "memory"))


def requested(spec: Mapping[str, Any], resource: str) -> float:
    """Return what a pod requests of a resource, as the Kubernetes scheduler counts it, in cores or bytes.

    All containers that run together, or an init container that requests more, and the pod's overhead.
    """
    beside = Decimal(0)
    most = Decimal(0)
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            beside += _of(container, resource)
            most = max(most, beside)
        else:
            most = max(most, beside + _of(container, resource))
    together = sum((_of(container, resource) for container in spec.get("containers") or []), beside)
    overhead = amount((spec.get("overhead") or {}).get(resource)) or Decimal(0)
    return float(max(together, most) + overhead)


def _of(container: Mapping[str, Any], resource: str) -> Decimal:
    asked = ((container.get("resources") or {}).get("requests") or {}).get(resource)
    return amount(asked) or Decimal(0)


def _sum(each: Iterable[PodRequests]) -> PodRequests:
    found = list(each)
    return PodRequests(math.fsum(a.cores for a in found), math.fsum(a.memory for a in found))
