"""Takes Slamls over HTTP on one machine, as the API server does on a cluster: applied, listed, deleted.

Thread-safe: each change is one compare-and-set of a row; `slaml_controller` does the rest at the loop's next turn. A
shared machine takes no Slamls of its users, and on a cluster Kubernetes does, which knows who may.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress

from coordinator.api.access import Access, UserService
from coordinator.caller import FORBIDDEN, Tenant
from coordinator.errors import Conflict, Rejected
from coordinator.model.records import Doc, number
from coordinator.model.tables import SlamlChanges, SlamlRow, plain
from coordinator.ports import Clock, Store
from coordinator.scheduling.slaml.slaml_object import object_problems, row_of
from coordinator.scheduling.slaml.slaml_spec import Slaml, problems
from coordinator.scheduling.slaml.slaml_status import INFEASIBLE, stamp

TABLE = "slamls"
TRIES = 5
KEPT = 100  # that are over; their jobs may be removed by retention once they are not kept
APPLY = "Here Kubernetes holds the Slamls: use kubectl, such as kubectl apply -f FILE or kubectl delete slaml NAME."


class SlamlRequests(UserService):
    """Thread-safe."""

    def __init__(
        self, access: Access, store: Store, clock: Clock, on_cluster: bool, read_store: Callable[[], None]
    ) -> None:
        """`on_cluster`: the API server takes Slamls, so nothing is changed here."""
        super().__init__(access)
        self._store = store
        self._clock = clock
        self._on_cluster = on_cluster
        self._read_store = read_store
        self._lock = threading.Lock()  # of two that apply one name at once the second changes what the first inserted

    def apply(self, item: Doc, dry_run: bool = False) -> Doc:
        """Store a new Slaml, or new values of one that has not ended, which is then judged again.

        One that has ended makes room for another of its name. `dry_run`: only check it.
        """
        self._require_taken_here()
        row = self._row(item)
        with self._lock:
            stored = row if dry_run else self._again(lambda: self._put(row))
        self._read_store()
        return view(stored)

    def _put(self, row: SlamlRow) -> SlamlRow:
        before = self._find(Slaml.from_row(row).id)
        if before is None or before.get("finished") or view(before)["state"] == "Completed":
            return self._insert(row, before)
        generation = Slaml.from_row(before).generation + 1
        changes: SlamlChanges = {"spec": row["spec"], "notes": row["notes"], "generation": generation}
        return self._store.update(TABLE, before["_id"], {"version": before.get("version")}, changes)

    @staticmethod
    def _again(change: Callable[[], SlamlRow]) -> SlamlRow:
        """Make a change once more where the controller has changed the row meanwhile."""
        for _ in range(TRIES - 1):
            with suppress(Conflict):
                return change()
        return change()

    def _row(self, item: Doc) -> SlamlRow:
        """The row of an object of a user; `Rejected` if there is anything wrong with it."""
        found = object_problems(item)
        if not found:
            meta = {"namespace": "default", **item["metadata"]}
            made = {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": stamp(self._clock.wall())}
            kept = {name: meta[name] for name in ("namespace", "name", "annotations", "labels") if name in meta}
            row: SlamlChanges = {"_id": made["uid"], **row_of({**item, "metadata": {**kept, **made}})}
            found = problems(Slaml.from_row(row))
        if found:
            raise Rejected("The Slaml was not accepted: " + "; ".join(found) + ".", problems=tuple(found))
        return row

    def _insert(self, row: SlamlRow, before: SlamlRow | None) -> SlamlRow:
        if before is not None:
            self._store.delete(TABLE, before["_id"], {"version": before.get("version")})
        doc = {**plain(row), "created": self._clock.wall(), "version": 1}
        self._store.insert(TABLE, doc)
        over = sorted((row for row in self._store.list(TABLE) if _is_over(row)), key=_age)
        self._store.remove(TABLE, [row["_id"] for row in over[:-KEPT]])
        return doc

    def all(self) -> list[Doc]:
        """Return views of all Slamls that the caller may read, the oldest first."""
        rows = sorted(self._store.list(TABLE), key=_age)
        return [shown for row in rows if not row.get("deleted") and self._reads(shown := view(row))]

    def _reads(self, shown: Doc) -> bool:
        return self._caller is None or self._caller.admin or self._caller.reads_row(shown)

    def _require_taken_here(self) -> None:
        if self._caller is not None and not isinstance(self._caller, Tenant):
            raise Rejected("A shared `reshape up` takes no Slamls: give each job its deadline as sla.", FORBIDDEN)
        if self._on_cluster or self._caller is not None:
            raise Rejected(APPLY, 409)

    def delete(self, slaml_id: str) -> Doc:
        """Delete a Slaml: its jobs that have not ended are cancelled."""
        self._require_taken_here()
        with self._lock:
            stored = self._again(lambda: self._mark_deleted(slaml_id))
        self._read_store()
        return view(stored)

    def _mark_deleted(self, slaml_id: str) -> SlamlRow:
        row = self._find(slaml_id)
        if row is None:
            raise Rejected(f"There is no Slaml {slaml_id!r}; `reshape slamls` lists them.", 404)
        changes: SlamlChanges = {"deleted": True}
        return self._store.update(TABLE, row["_id"], {"version": row.get("version")}, changes)

    def _find(self, slaml_id: str) -> SlamlRow | None:
        return next((row for row in self._store.list(TABLE) if _is(row, slaml_id)), None)


def _is(row: SlamlRow, slaml_id: str) -> bool:
    if Slaml.from_row(row).id != slaml_id:
        return False
    if row.get("deleted"):
        raise Rejected(f"{slaml_id} is just being deleted; its name is free in some seconds.", 409)
    return True


def _is_over(row: SlamlRow) -> bool:
    """Whether nothing of it will happen any more; one that no node could hold is looked at again."""
    judged = _fields(row.get("judged"))
    return bool(row.get("finished")) or (judged.get("accepted") is False and judged.get("reason") != INFEASIBLE)


def _age(row: SlamlRow) -> tuple[float, str]:
    return number(row.get("created")) or 0.0, str(row["_id"])


def _fields(value: object) -> Doc:
    """What a row holds there; nothing if somebody has changed it into something else."""
    return value if isinstance(value, dict) else {}


def _each(value: object) -> list[Doc]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def view(row: SlamlRow) -> Doc:
    """A Slaml for people: its state, its times in seconds, and the sentence about its verdict or failure."""
    slaml = Slaml.from_row(row)
    status = _fields(row.get("status"))
    judged = _fields(row.get("judged"))
    bad = [one for one in _each(status.get("conditions")) if one.get("type") == "Completed"]
    failed = bad[0].get("message") if bad and bad[0].get("status") != "True" else ""
    return {
        "slaml": slaml.id,
        "namespace": slaml.namespace,
        "name": slaml.name,
        "state": str(status.get("state") or "Submitted"),
        "target_s": slaml.target_s,
        "expected_s": status.get("expected"),
        "wait_s": status.get("waitingTime"),
        "minimum_target_s": status.get("minimumTarget"),
        "progress": str(status.get("progress") or ""),
        "tasks": _each(status.get("tasks")),
        "sentence": str(failed or judged.get("sentence") or ""),
    }
