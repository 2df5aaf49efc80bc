"""Writes which nodes take pods and what others hold there: `schedulable` and `others` of table `nodes`.

Others are foreign pods, by their requests, and the processes for which the kubelet reserves a part of the node.

Promises: only documents made by node agents' reports are touched, only these fields, and only when they change; a
node that the API server does not list, or that is not Ready or cordoned (S10), takes none. Without the right to watch
nodes nothing is written. A turn looks at what has changed, not at all nodes and pods. Called by `launch_service.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from coordinator.errors import Conflict
from coordinator.model.tables import NodeChanges, NodeRow, plain
from coordinator.ports import Clock, Store
from launcher.admission.inject import GPU
from launcher.cluster.api import KubernetesApi
from launcher.cluster.informer import Informer
from launcher.cluster.pods.foreign_usage import ForeignUsage, PodRequests
from launcher.cluster.pods.limit_rules import amount

Doc = dict[str, Any]

TABLE = "nodes"
LOOK_S = 5.0  # all documents are compared so often, even if no node has changed: some may be new
FEW = 50  # documents that are read one by one rather than all


class ObservedNode(NamedTuple):
    """Says whether a node takes pods, what its kubelet keeps, and its GPUs by its device plugin, if it has one."""

    takes_pods: bool = False
    kept: PodRequests = PodRequests()
    gpus: float | None = None


class NodeController:
    """`start` begins its watch, `stop` ends it."""

    def __init__(self, store: Store, cluster: KubernetesApi, clock: Clock, namespaces: tuple[str, ...] = ()) -> None:
        """`namespaces`: those whose pods are watched; none: all."""
        self._store, self._clock = store, clock
        self._informer = Informer(
            cluster, "Node", None, None, lambda: None, _without_unread_fields
        )  # no hurry: seen in a turn
        self._changes = self._informer.changes()
        self.foreign = ForeignUsage(cluster, namespaces)
        self._name_by_uid: dict[str, str] = {}
        self._observed: dict[str, ObservedNode] = {}  # by name
        self._changed: set[str] = set()  # names of nodes whose documents are to be compared
        self._look_at = 0.0

    def start(self) -> None:
        self._informer.start()
        self.foreign.start()

    def stop(self) -> None:
        self._informer.stop()
        self.foreign.stop()

    def turn(self) -> None:
        if not self._informer.in_step:
            return
        self._observe()
        if self._clock.now() >= self._look_at:
            self._compare(self._store.list(TABLE))
            self._look_at = self._clock.now() + LOOK_S
        elif len(self._changed) > FEW:
            self._compare(self._store.list(TABLE))
        else:
            found = [self._store.get(TABLE, name) for name in sorted(self._changed)]
            self._compare([doc for doc in found if doc is not None])
        self._changed = set()

    def _observe(self) -> None:
        """Take what has changed in the cluster. A node that only reported again has not."""
        for uid, node in self._changes.take_objects().items():
            if node is None:
                name = self._name_by_uid.pop(uid, "")
                self._observed.pop(name, None)
            else:
                name = str(node["metadata"]["name"])
                seen = ObservedNode(schedulable(node), reserved(node), gpus(node))
                if self._name_by_uid.get(uid) == name and self._observed.get(name) == seen:
                    continue
                self._name_by_uid[uid] = name
                self._observed[name] = seen
            self._changed.add(name)
        self._changed |= self.foreign.changed_nodes()

    def _compare(self, rows: Iterable[NodeRow]) -> None:
        for doc in rows:
            name = str(doc["_id"])
            foreign = self.foreign.on_node(name) if self.foreign.known else None
            if doc.get("agent") and (changes := _changes(doc, self._observed.get(name, ObservedNode()), foreign)):
                with suppress(Conflict):  # forgotten meanwhile
                    self._store.update(TABLE, doc["_id"], {}, changes)


def _changes(doc: NodeRow, observed: ObservedNode, foreign: PodRequests | None) -> NodeChanges:
    """Return the fields of a node's document that have to change."""
    wanted: NodeChanges = {"schedulable": observed.takes_pods}
    if foreign is not None:
        kept = observed.kept
        wanted["others"] = {"cores": foreign.cores + kept.cores, "memory": foreign.memory + kept.memory}
        has_plugin = observed.gpus is not None
        wanted["pool"] = {"allocatable": observed.gpus, "requested": foreign.gpus} if has_plugin else None
    now = {"schedulable": True, "others": {"cores": 0.0, "memory": 0.0}, "pool": None, **plain(doc)}
    return {field: value for field, value in wanted.items() if now[field] != value}


def _without_unread_fields(node: Doc) -> Doc:
    """Return what is read of a node here: its images and addresses are most of it."""
    meta = node["metadata"]
    status = node.get("status") or {}
    return {
        "metadata": {"uid": meta["uid"], "name": meta["name"]},
        "spec": {"unschedulable": (node.get("spec") or {}).get("unschedulable")},
        "status": {
            "conditions": [one for one in status.get("conditions") or [] if one.get("type") == "Ready"],
            "capacity": status.get("capacity"),
            "allocatable": status.get("allocatable"),
        },
    }


def schedulable(node: Mapping[str, Any]) -> bool:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
    return ready and not spec.get("unschedulable")


def gpus(node: Mapping[str, Any]) -> float | None:
    """Return how many GPUs pods may request of a node; None if it has no device plugin."""
    given = amount(((node.get("status") or {}).get("allocatable") or {}).get(GPU))
    return None if given is None else float(given)


def reserved(node: Mapping[str, Any]) -> PodRequests:
    """Return what the kubelet keeps of a node for other processes: its capacity less what pods may have."""
    status = node.get("status") or {}
    whole, for_pods = (status.get(of) or {} for of in ("capacity", "allocatable"))

    def kept(resource: str) -> float:
        given, left = amount(whole.get(resource)), amount(for_pods.get(resource))
        return 0.0 if given is None or left is None else max(0.0, float(given - left))

    return PodRequests(kept("cpu"), kept("memory"))
