"""Slaml objects (seed 003) into table `slamls`, and what became of them back: status, conditions, events.

Promises: a row is what the object says, written once per change; an object that is gone by the API server's own word is
a row that says so; a status is written only where it differs. Where the cluster has no such kind, or we may not see it,
nothing else suffers. What a Slaml becomes is judged by
`coordinator.scheduling.slaml_controller`. Called by `service.py`, in its one thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from coordinator.errors import Conflict, ReshapeError, Transient
from coordinator.ports import Store
from coordinator.scheduling.slaml_spec import GPUS, QUEUES
from launcher.cluster.api import KubernetesApi
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.informer import Informer

Doc = dict[str, Any]

TABLE, KIND = "slamls", "Slaml"
NOTES = (GPUS, *QUEUES)  # annotations and labels that count
BAD_IF_TRUE = ("AtRisk", "Violated")
ENDED_BADLY = ("Failed", "Cancelled")

log = logging.getLogger(__name__)


class SlamlSync:
    """`start` begins its watches, `turn` is one look, `stop` ends them."""

    def __init__(
        self,
        store: Store,
        cluster: KubernetesApi,
        news: EventWriter,
        namespaces: tuple[str, ...],
        changed: Callable[[], None],
    ) -> None:
        """`namespaces`: those that are watched; none: all."""
        self._store, self._cluster, self._news, self._namespaces = store, cluster, news, namespaces
        self._mirrors = [Informer(cluster, KIND, namespace, None, changed) for namespace in namespaces or (None,)]
        self._shown: dict[str, str] = {}  # the version of each object that its status was last written on

    def start(self) -> None:
        for mirror in self._mirrors:
            mirror.start()

    def stop(self) -> None:
        for mirror in self._mirrors:
            mirror.stop()

    def turn(self) -> None:
        """Nothing while the watches are behind: a Slaml that only seems to be gone would be cancelled."""
        if not all(mirror.in_step for mirror in self._mirrors):
            return
        items = {uid: item for mirror in self._mirrors for uid, item in mirror.items().items()}
        rows = {str(row["_id"]): row for row in self._store.list(TABLE)}
        self._shown = {uid: version for uid, version in self._shown.items() if uid in items}
        for uid, item in items.items():
            self._tend(item, rows.get(uid))
        for uid, row in rows.items():
            if uid not in items and not row.get("deleted") and self._is_gone(row):
                self._change(row, {"deleted": True})

    def _tend(self, item: Doc, row: Doc | None) -> None:
        """One that we stumble over hinders no other."""
        try:
            self._keep(item, row)
        except Transient:
            raise
        except ReshapeError as error:
            log.warning("Slaml %s: %s", item["metadata"]["name"], error)
        except Exception:
            log.exception("Slaml %s", item["metadata"].get("name"))

    def _keep(self, item: Doc, row: Doc | None) -> None:
        wanted = fields(item)
        if row is None:
            if not wanted["deleted"]:
                self._store.insert(TABLE, {"_id": str(item["metadata"]["uid"]), **wanted, "version": 1})
        elif any(row.get(name) != value for name, value in wanted.items()):
            self._change(row, wanted)
        elif row.get("status") and not wanted["deleted"]:
            self._show(item, row["status"])

    def _show(self, item: Doc, status: Doc) -> None:
        uid, version = str(item["metadata"]["uid"]), str(item["metadata"]["resourceVersion"])
        before = item.get("status") or {}
        if self._shown.get(uid) == version or before == {k: v for k, v in status.items() if v is not None}:
            return
        for reason, message, warning in news(before, status):
            self._news.tell(item, reason, message, warning)
        self._cluster.show(item, {**dict.fromkeys(before.keys() - status.keys()), **status})
        self._shown[uid] = version  # until the watch shows what we wrote

    def _is_gone(self, row: Doc) -> bool:
        """By the API server's own word, and only where we look: a cancellation is for ever."""
        namespace = str(row.get("namespace"))
        if self._namespaces and namespace not in self._namespaces:
            return False
        found = self._cluster.list(KIND, namespace, fields=f"metadata.name={row.get('name')}").items
        return all(str(item["metadata"]["uid"]) != str(row["_id"]) for item in found)

    def _change(self, row: Doc, changes: Doc) -> None:
        try:
            self._store.update(TABLE, row["_id"], {"version": row.get("version")}, changes)
        except Conflict:
            log.info("Slaml %s/%s has changed; looking again", row.get("namespace"), row.get("name"))


def fields(item: Mapping[str, Any]) -> Doc:
    """What a row says of its object. The spec is a text, because no store takes every key that it may hold."""
    meta = item["metadata"]
    labels = {name: value for name, value in (meta.get("labels") or {}).items() if name in NOTES}
    notes = {name: value for name, value in (meta.get("annotations") or {}).items() if name in NOTES}
    return {
        "namespace": str(meta["namespace"]), "name": str(meta["name"]), "generation": int(meta.get("generation") or 1),
        "created": datetime.fromisoformat(str(meta["creationTimestamp"])).timestamp(),
        "spec": json.dumps(item.get("spec") or {}, sort_keys=True),
        "notes": json.dumps(labels | notes, sort_keys=True), "deleted": "deletionTimestamp" in meta,
    }  # fmt: skip


def news(before: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Reason, sentence and whether it is a warning: of each condition that has become something else."""
    old = {one.get("type"): one for one in before.get("conditions") or []}
    for one in status.get("conditions") or []:
        kind, so, was = one["type"], one["status"] == "True", old.get(one["type"]) or {}
        if kind == "Accepted":
            if (was.get("status"), was.get("message")) != (one["status"], one["message"]):
                yield one["reason"], one["message"], not so
        elif (was.get("status"), was.get("reason")) == (one["status"], one["reason"]):
            continue
        elif kind in BAD_IF_TRUE and so:
            yield kind, one["message"], True
        elif kind == "Completed" and (so or one["reason"] in ENDED_BADLY):
            yield one["reason"], one["message"] or f"All tasks are completed ({status.get('progress')}).", not so
