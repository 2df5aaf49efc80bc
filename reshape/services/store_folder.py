"""Keeps to one state folder the jobs of a store: what runs of them, and their checkpoints, are only known there.

The row `state folder` of table `terms` says which one it is. Called by `up.py` once it leads.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

from coordinator.dashboard.words import listed
from coordinator.errors import Rejected
from coordinator.model.records import JobRecord
from coordinator.ports import Doc, Store
from launcher.local import running_jobs

ROW = "state folder"


def keep_to_folder(store: Store, state: Path, master_key: bytes) -> None:
    """Write that the jobs of this store are launched in `state`.

    `Rejected` if some that have not ended were launched in another folder. One that was moved is known by its master
    key; one of this machine that is not there any more was deleted, and its jobs begin again here.
    """
    mine = {
        "_id": ROW,
        "path": str(state),
        "host": socket.gethostname(),
        "key": hashlib.sha256(master_key).hexdigest(),
    }
    before = store.get("terms", ROW)
    if before is not None and before.get("key") != mine["key"]:
        _refuse_other_folder(store, state, before, mine["host"])
    store.put("terms", mine)


def _refuse_other_folder(store: Store, state: Path, before: Doc, host: str) -> None:
    path = Path(str(before.get("path")))
    here = before.get("host") == host
    if here and (not path.exists() or (state.exists() and path.samefile(state))):
        return
    launched = {job.id for job in map(JobRecord, store.list("jobs", {"closed": False})) if job.launch > 0}
    if here:
        launched |= running_jobs(path)  # also of a job whose document was deleted meanwhile
    if not launched:
        return
    where = f"the state folder {path}" if here else f"the state folder {path} of machine {before.get('host')}"
    said = f"Jobs of this store that have not ended ({listed(sorted(launched))}) were launched in {where}: "
    if here:
        raise Rejected(f"{said}start with --state {path}.")
    raise Rejected(
        f"{said}start `reshape up` there. If that machine is gone for good, carry them into a new store, by `reshape "
        "store export` and `reshape store import`, and start with that one."
    )
