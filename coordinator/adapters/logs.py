"""Reads logs of jobs whose pods are gone: they are stored beside the checkpoints, on the job's claim.

Promises: a call never waits for a pod; at most one reader per job, which the launcher starts
(`launcher.cluster.pods.log_reader`) while its document in table `readers` is renewed, and removes soon after. Fields of
the document: `job` (`_id` of the job), `asked` (time of the last call), and by the launcher `ip` and `failure`.
"""

from __future__ import annotations

from contextlib import suppress

from coordinator.errors import Conflict, Fatal, Rejected, Transient
from coordinator.model.records import JobRecord
from coordinator.ports import Clock, Doc, Sidecars, Store
from sidecar.protocol import launch_key

TABLE = "readers"
READER = 0  # the launch number of a job's reader: those of trainings begin with 1
AGAIN_S = 5.0  # least time between two renewals


class ArchivedLogs:
    """Thread-safe as its store is."""

    def __init__(self, store: Store, sidecars: Sidecars, master_key: bytes, clock: Clock) -> None:
        self._store, self._sidecars, self._master_key, self._clock = store, sidecars, master_key, clock

    def read(self, name: str, job: JobRecord, port: int, offset: int, limit: int) -> tuple[bytes, int]:
        """`Transient` until its reader serves; `Rejected` with a sentence if it cannot. `name`: of the reader."""
        found = self._asked(name, job)
        if found.get("failure") is not None:
            raise Rejected(f"The log of job {job.id} cannot be read now: {found['failure']}.", 409)
        url, key = address(found.get("ip"), port), launch_key(self._master_key, job.uid, READER)
        if url is not None:
            with suppress(Transient, Fatal):  # it is not up yet, or another pod has its address by now
                return self._sidecars.read_output(url, key, job.id, READER, offset, limit)
        raise Transient(f"The log of job {job.id} is being fetched from its claim; try again soon.")

    def _asked(self, name: str, job: JobRecord) -> Doc:
        """Renew and return its reader's document; a failed one is left for the launcher to clean up."""
        found, wall = self._store.get(TABLE, name), self._clock.wall()
        if found is None:
            found = {"_id": name, "job": job.key, "asked": wall, "ip": None, "failure": None, "version": 1}
            with suppress(Conflict):  # another call was first
                self._store.insert(TABLE, found)
        elif found.get("failure") is None and not 0 <= wall - found["asked"] < AGAIN_S:
            with suppress(Conflict):
                found = self._store.update(TABLE, name, {"version": found.get("version")}, {"asked": wall})
        return found


def address(ip: object, port: int) -> str | None:
    """The URL of a pod by its address; None without one."""
    host = f"[{ip}]" if ":" in str(ip) else ip
    return f"http://{host}:{port}" if ip else None
