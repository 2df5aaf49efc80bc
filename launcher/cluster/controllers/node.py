"""Writes which nodes take pods and what others hold there: `schedulable` and `others` of table `nodes`.

Others are foreign pods, by their requests, and the processes for which the kubelet reserves a part of the node.

Promises: only documents made by node agents' reports are touched, only these fields, and only when they change; a
node that the API server does not list, or that is not Ready or cordoned (S10), takes none. Without the right to watch
nodes nothing is written. Called by `launch_service.py` at each turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from coordinator.errors import Conflict
from coordinator.model.tables import NodeChanges, NodeRow
from coordinator.ports import Clock, Store
from launcher.cluster.api import KubernetesApi
from launcher.cluster.informer import Informer
from launcher.cluster.pods.foreign_usage import ForeignUsage, PodRequests
from launcher.cluster.pods.limit_rules import amount

Doc = dict[str, Any]

TABLE = "nodes"
LOOK_S = 5.0  # documents are compared so often even if no node has changed: some may be new


class NodeController:
    """`start` begins its watch, `stop` ends it."""

    def __init__(self, store: Store, cluster: KubernetesApi, clock: Clock, namespaces: tuple[str, ...] = ()) -> None:
        """`namespaces`: those whose pods are watched; none: all."""
        self._store, self._clock = store, clock
        self._informer = Informer(cluster, "Node", None, None, lambda: None)  # seen at the next turn: no hurry
        self._foreign = ForeignUsage(cluster, namespaces)
        self._written: object = None
        self._look_at = 0.0

    def start(self) -> None:
        self._informer.start()
        self._foreign.start()

    def stop(self) -> None:
        self._informer.stop()
        self._foreign.stop()

    def turn(self) -> None:
        if not self._informer.in_step:
            return
        nodes = self._informer.items().values()
        observed = {str(node["metadata"]["name"]): (schedulable(node), reserved(node)) for node in nodes}
        foreign = self._foreign.requested()
        if (observed, foreign) == self._written and self._clock.now() < self._look_at:
            return
        for doc in self._store.list(TABLE):
            if doc.get("agent") and (changes := _changes(doc, observed, foreign)):
                with suppress(Conflict):  # forgotten meanwhile
                    self._store.update(TABLE, doc["_id"], {}, changes)
        self._written, self._look_at = (observed, foreign), self._clock.now() + LOOK_S


def _changes(
    doc: NodeRow, observed: Mapping[str, tuple[bool, PodRequests]], foreign: Mapping[str, PodRequests] | None
) -> NodeChanges:
    """Return the fields of a node's document that have to change."""
    name = str(doc["_id"])
    takes_pods, kept = observed.get(name, (False, PodRequests()))
    wanted: NodeChanges = {"schedulable": takes_pods}
    if foreign is not None:
        pods = foreign.get(name, PodRequests())
        wanted["others"] = PodRequests(pods.cores + kept.cores, pods.memory + kept.memory)._asdict()
    now = {"schedulable": True, "others": PodRequests()._asdict(), **doc}
    return {field: value for field, value in wanted.items() if now[field] != value}


def schedulable(node: Mapping[str, Any]) -> bool:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
    return ready and not spec.get("unschedulable")


def reserved(node: Mapping[str, Any]) -> PodRequests:
    """Return what the kubelet keeps of a node for other processes: its capacity less what pods may have."""
    status = node.get("status") or {}
    whole, for_pods = (status.get(of) or {} for of in ("capacity", "allocatable"))

    def kept(resource: str) -> float:
        given, left = amount(whole.get(resource)), amount(for_pods.get(resource))
        return 0.0 if given is None or left is None else max(0.0, float(given - left))

    return PodRequests(kept("cpu"), kept("memory"))
