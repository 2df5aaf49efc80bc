"""Brings the store in line with what runs, before the coordinator decides anything.

Promises: asks the platform once, writes only what `rebuild` finds missing or outdated, and may be repeated. Called by
the coordinator at its start, and when the store it had written to was emptied or replaced by an older one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from coordinator.errors import Conflict, Transient
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.tables import GpuChanges
from coordinator.ports import Doc, LivingLaunch, Platform, Store
from coordinator.recovery.rebuild import Rebuilt, rebuild

LAUNCHED = s.LAUNCHED - {s.INITIALIZING}  # one that comes up is launched anew, under the same name

log = logging.getLogger(__name__)


ROWS = ("gpus", "nodes", "queues", "reservations")  # of which memory has the whole


def restore(store: Store, remembered: Mapping[str, Sequence[Doc]]) -> None:
    """Write back the rows of these tables that the store has lost, or has in an older version."""
    for table in ROWS:
        stored = {str(row["_id"]): _version(row) for row in store.list(table)} if remembered[table] else {}
        for row in remembered[table]:
            if stored.get(str(row["_id"]), -1) < _version(row):
                store.put(table, row)


def recover(
    store: Store, platform: Platform, wall: float, remembered: Sequence[Doc] = (), heard: Sequence[LivingLaunch] = ()
) -> Rebuilt:
    """`remembered`: documents that this coordinator had in memory; `heard`: launches that reported to it."""
    stored = store.list("jobs", {"closed": False})
    evidence = platform.recall(stored)
    keys = {str(doc["_id"]) for doc in stored}
    named = {str(doc["_id"]): doc["_id"] for doc in (*evidence.records, *remembered) if str(doc["_id"]) not in keys}
    stored += [doc for doc in (store.get("jobs", key) for key in named.values()) if doc is not None]
    uids = {str(doc.get("uid")) for doc in stored}  # the key of a copy may be the text of what MongoDB made
    for copy in (doc for doc in evidence.records if str(doc["uid"]) not in uids):
        name = copy.get("job_id") if isinstance(copy.get("job_id"), str | int) else None
        stored += [doc for doc in store.list("jobs", {"job_id": name}) if doc.get("uid") == copy["uid"]]
    ended = [doc for doc in stored if JobRecord(doc).state in s.ENDED or doc.get("closed")]
    goes_on = {str(doc.get("uid")) for doc in stored if doc not in ended}  # a row copied by hand may say it has ended
    for doc in ended:
        if doc.get("uid") and str(doc["uid"]) not in goes_on:
            platform.keep(doc)  # its copy may be older
    known = {(one.uid, one.launch) for one in evidence.living}
    living = [*evidence.living, *(one for one in heard if (one.uid, one.launch) not in known)]
    rows = store.list("gpus")
    found = rebuild(stored, rows, evidence.records, living, wall, remembered)
    for doc in found.jobs:
        store.put("jobs", doc)
        platform.keep(doc)
        if (job := JobRecord(doc)).state in LAUNCHED and job.launch > 0:
            platform.adopt(doc)
    _write_gpus(store, rows, found.gpus)
    for sentence in found.told:
        log.warning("%s", sentence)
    return found


def _write_gpus(store: Store, rows: Sequence[Doc], found: Mapping[str, GpuChanges]) -> None:
    """`Transient` if a reconciler, which may be in the middle of its work, has changed one since it was read."""
    versions = {str(row["_id"]): row.get("version") for row in rows}
    for gpu_id, changes in found.items():
        version = versions[gpu_id]
        comparable = version is None or isinstance(version, int | str)
        try:
            store.update("gpus", gpu_id, {"version": version} if comparable else {}, changes)
        except Conflict:
            if store.get("gpus", gpu_id) is not None:  # else its node will report it
                raise Transient(f"GPU {gpu_id} was changed while the store was rebuilt: once more") from None


def _version(row: Doc) -> int:
    found = row.get("version")
    return found if isinstance(found, int) else 0
