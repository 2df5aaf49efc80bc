"""Copies Slaml objects into table `slamls`, and their status, conditions and Events back.

Promises: a row holds what the object says, written once per change; a row is marked deleted only after the API server
confirms it; a status is written only where it differs. A cluster without this kind, or without the right to read it,
hinders nothing else. `coordinator.scheduling.slaml.slaml_controller` decides about Slamls. Called by
`launch_service.py`, in its one thread.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from coordinator.errors import Conflict, ReshapeError, Transient
from coordinator.model.tables import SlamlChanges, SlamlRow, plain
from coordinator.ports import Store
from coordinator.scheduling.slaml.slaml_object import KIND, images_without_command, row_of
from launcher.cluster.api import KubernetesApi
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.informer import Informer
from launcher.cluster.registry import ImageCommands

Doc = dict[str, Any]

TABLE = "slamls"
BAD_IF_TRUE = ("AtRisk", "Violated")
ENDED_BADLY = ("Failed", "Cancelled")

log = logging.getLogger(__name__)


class SlamlSync:
    """`start` begins its watches, `turn` synchronizes once, `stop` ends them."""

    def __init__(
        self,
        store: Store,
        cluster: KubernetesApi,
        events: EventWriter,
        namespaces: tuple[str, ...],
        changed: Callable[[], None],
        images: ImageCommands,
    ) -> None:
        """`namespaces`: those that are watched; none: all. `images`: tells what those start that tasks name."""
        self._store, self._cluster, self._events, self._namespaces = store, cluster, events, namespaces
        self._images = images
        self._informers = [Informer(cluster, KIND, namespace, None, changed) for namespace in namespaces or (None,)]
        self._written: dict[str, str] = {}  # the version of each object that its status was last written on

    def start(self) -> None:
        for informer in self._informers:
            informer.start()

    def stop(self) -> None:
        for informer in self._informers:
            informer.stop()

    def turn(self) -> None:
        """Synchronize all Slamls, unless the watches are behind: a Slaml that only seems gone would be cancelled."""
        if not all(informer.in_step for informer in self._informers):
            return
        items = {uid: item for informer in self._informers for uid, item in informer.items().items()}
        rows = {str(row["_id"]): row for row in self._store.list(TABLE)}
        self._written = {uid: version for uid, version in self._written.items() if uid in items}
        for uid, item in items.items():
            self._tend(item, rows.get(uid))
        for uid, row in rows.items():
            if uid not in items and not row.get("deleted") and self._is_gone(row):
                self._change(row, {"deleted": True})

    def _tend(self, item: Doc, row: SlamlRow | None) -> None:
        """Synchronize one Slaml; an error in one hinders no other."""
        try:
            self._keep(item, row)
        except Transient:
            raise
        except ReshapeError as error:
            log.warning("Slaml %s: %s", item["metadata"]["name"], error)
        except Exception:
            log.exception("Slaml %s", item["metadata"].get("name"))

    def _keep(self, item: Doc, row: SlamlRow | None) -> None:
        wanted = row_of(item)
        if row is None or row.get("generation") != wanted["generation"]:
            starts = {image: self._images.command_of_image(image) for image in images_without_command(wanted)}
            if None in starts.values():  # being read: `changed` is called then
                return
            wanted["starts"] = json.dumps(starts, sort_keys=True)
        if row is None:
            if not wanted["deleted"]:
                self._store.insert(TABLE, {"_id": str(item["metadata"]["uid"]), **plain(wanted), "version": 1})
        elif any(row.get(name) != value for name, value in wanted.items()):
            self._change(row, wanted)
        elif row.get("status") and not wanted["deleted"]:
            self._show(item, row["status"])

    def _show(self, item: Doc, status: Doc) -> None:
        uid, version = str(item["metadata"]["uid"]), str(item["metadata"]["resourceVersion"])
        before = item.get("status") or {}
        if self._written.get(uid) == version or before == {k: v for k, v in status.items() if v is not None}:
            return
        for reason, message, warning in condition_events(before, status):
            self._events.write(item, reason, message, warning)
        self._cluster.show(item, {**dict.fromkeys(before.keys() - status.keys()), **status})
        self._written[uid] = version  # until the watch shows what we wrote

    def _is_gone(self, row: SlamlRow) -> bool:
        """Ask the API server whether it is gone, in watched namespaces only: a cancellation is final."""
        namespace = str(row.get("namespace"))
        if self._namespaces and namespace not in self._namespaces:
            return False
        found = self._cluster.list(KIND, namespace, fields=f"metadata.name={row.get('name')}").items
        return all(str(item["metadata"]["uid"]) != str(row["_id"]) for item in found)

    def _change(self, row: SlamlRow, changes: SlamlChanges) -> None:
        try:
            self._store.update(TABLE, row["_id"], {"version": row.get("version")}, changes)
        except Conflict:
            log.info("Slaml %s/%s has changed; looking again", row.get("namespace"), row.get("name"))


def condition_events(before: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield reason, sentence and whether it is a warning, for each condition that has changed."""
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
