"""Counts the cores and memory that foreign pods request on each node, which no job of ours may use.

Promises: pods that are ours, that have ended or that have no node yet count nothing; one list, page by page, then
changes only; a watch that ends continues where it was. Only a few numbers of each pod are kept, and a node is counted
again only if its pods have changed. On a cluster that does not let us watch all pods a warning is logged once and none
is counted. Read by `node.py`; one thread for each watched namespace.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from coordinator.errors import ReshapeError
from launcher.admission.inject import GPU
from launcher.cluster.api import Expired, KubernetesApi
from launcher.cluster.pods.limit_rules import amount
from launcher.cluster.pods.pod_state import Pod
from launcher.names import JOB, PLACEHOLDER

Doc = dict[str, Any]

RUNNING = "status.phase!=Succeeded,status.phase!=Failed"  # a cluster keeps thousands that have ended
WATCH_S = 300
PAUSE_S = 2.0

log = logging.getLogger(__name__)


class PodRequests(NamedTuple):
    """A pod's requests: cores, bytes and GPUs."""

    cores: float = 0.0
    memory: float = 0.0
    gpus: float = 0.0


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

    @property
    def known(self) -> bool:
        """True once every watch has read a list."""
        return all(watch.known for watch in self._watches)

    def on_node(self, node: str) -> PodRequests:
        """Return what foreign pods request on one node."""
        return _sum(asked for watch in self._watches for asked in watch.on_node(node))

    def changed_nodes(self) -> set[str]:
        """Return the nodes whose pods have changed since the last call."""
        return {node for watch in self._watches for node in watch.changed_nodes()}

    def waiting_for_gpus(self) -> list[Doc]:
        """Return the foreign pods that find no node for want of GPUs: name, GPUs and the only node of each, if any."""
        found = [wait for watch in self._watches for wait in watch.waiting()]
        return sorted(found, key=lambda wait: str(wait["name"]))


class _Watch:
    """The pods of one namespace, or (None) of all."""

    def __init__(self, cluster: KubernetesApi, namespace: str | None) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._node_by_uid: dict[str, str] = {}
        self._requests_by_node: dict[str, dict[str, PodRequests]] = {}  # by node and uid of the pod
        self._changed_nodes: set[str] = set()
        self._waits_by_uid: dict[str, Doc] = {}
        self._since = ""
        self._told = False
        self.known = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="watch other pods", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def on_node(self, node: str) -> list[PodRequests]:
        with self._lock:
            return list(self._requests_by_node.get(node, {}).values())

    def changed_nodes(self) -> set[str]:
        with self._lock:
            changed = self._changed_nodes
            self._changed_nodes = set()
        return changed

    def waiting(self) -> list[Doc]:
        with self._lock:
            return list(self._waits_by_uid.values())

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
        listed: set[str] = set()
        for page in self._cluster.pages("Pod", self._namespace, fields=RUNNING):
            for pod in page.items:
                uid = str(pod["metadata"]["uid"])
                listed.add(uid)
                self._take(uid, foreign_requests(pod), gpus_waited_for(pod))
            self._since = page.version
        for uid in (self._node_by_uid.keys() | self._waits_by_uid.keys()) - listed:
            self._take(uid, None, None)
        self._told = False
        self.known = True

    def _follow(self) -> None:
        for event, pod in self._cluster.watch("Pod", self._since, WATCH_S, self._namespace, fields=RUNNING):
            if self._stopping.is_set():
                return
            self._since = str(pod["metadata"].get("resourceVersion") or self._since)
            if event != "BOOKMARK":
                uid = str(pod["metadata"]["uid"])
                gone = event == "DELETED"
                self._take(uid, None if gone else foreign_requests(pod), None if gone else gpus_waited_for(pod))

    def _take(self, uid: str, entry: tuple[str, PodRequests] | None, wait: Doc | None) -> None:
        with self._lock:
            if wait is None:
                self._waits_by_uid.pop(uid, None)
            else:
                self._waits_by_uid[uid] = wait
            before = self._node_by_uid.get(uid)
            if before is not None and (entry is None or entry[0] != before):
                self._forget(uid, before)
            if entry is not None:
                node, asked = entry
                pods = self._requests_by_node.setdefault(node, {})
                if pods.get(uid) != asked:
                    self._node_by_uid[uid] = node
                    pods[uid] = asked
                    self._changed_nodes.add(node)

    def _forget(self, uid: str, node: str) -> None:
        del self._node_by_uid[uid]
        del self._requests_by_node[node][uid]
        if not self._requests_by_node[node]:
            del self._requests_by_node[node]
        self._changed_nodes.add(node)


def foreign_requests(doc: Mapping[str, Any]) -> tuple[str, PodRequests] | None:
    """Return the node of a foreign pod and what it requests there; None if it is ours, has ended or has no node."""
    pod = Pod(doc)
    if pod.node is None or pod.finished or JOB in (pod.meta.get("labels") or {}):
        return None
    asked = [requested(pod.spec, resource) for resource in ("cpu", "memory", GPU)]
    return pod.node, PodRequests(*asked)


def gpus_waited_for(doc: Mapping[str, Any]) -> Doc | None:
    """Return what a foreign pod waits for if no node has the GPUs that it requests, else None."""
    pod = Pod(doc)
    ours = {JOB, PLACEHOLDER} & (pod.meta.get("labels") or {}).keys()
    gpus = requested(pod.spec, GPU)
    if ours or pod.node is not None or pod.finished or pod.leaving or not gpus:
        return None
    said: Doc = next((c for c in pod.status.get("conditions") or [] if c.get("type") == "PodScheduled"), {})
    if said.get("status") != "False" or said.get("reason") != "Unschedulable" or not _lacks_gpus(said):
        return None
    named = pod.pinned
    return {"name": f"pod {pod.namespace}/{pod.name}", "gpus": int(gpus), **({"node": named} if named else {})}


def _lacks_gpus(said: Mapping[str, Any]) -> bool:
    """True if the scheduler names GPUs as what is missing."""
    message = str(said.get("message"))
    return GPU in message


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
    return PodRequests(*(math.fsum(amounts) for amounts in zip(*found, strict=True)))
