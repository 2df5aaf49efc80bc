"""Controls Slamls (the paper Slaml, docs/papers.md) from table `slamls`: acceptance, jobs, status.

Level-triggered: each sync compares the rows with the jobs and corrects differences, so a killed coordinator resumes by
reading. A verdict is written into the row first, and the `_id`s of job documents derive from the Slaml's uid. The jobs
of a deleted Slaml are cancelled. Called by the loop after its decisions, with their snapshot; the launcher
(`launcher.cluster.controllers.slaml`) writes the rows and copies `status` to the objects.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.errors import Conflict, Rejected
from coordinator.model import pod_fields
from coordinator.model import states as s
from coordinator.model.records import JobRecord, Moment, number
from coordinator.model.tables import JobChanges, JobRow, SlamlChanges, SlamlRow, plain
from coordinator.ports import Clock
from coordinator.scheduling.slaml import slaml_status
from coordinator.scheduling.slaml.slaml_spec import Slaml, documents
from coordinator.scheduling.slaml.slaml_status import INFEASIBLE, AdmissionVerdict
from coordinator.stores.cache import Cache

log = logging.getLogger(__name__)

TABLE = "slamls"
ALGORITHM = "deadline.diagnosis"


class SlamlController:
    """Syncs all Slamls once per cycle."""

    def __init__(self, cache: Cache, clock: Clock, settings: Settings) -> None:
        self._cache, self._store, self._clock, self._settings = cache, cache.store, clock, settings
        self._rows: dict[str, SlamlRow] = {}
        self._ended: dict[str, dict[str, JobRow]] = {}  # by Slaml: closed job documents, by key

    def sync(self, snapshot: ClusterSnapshot, read: bool) -> None:
        """Sync each Slaml; an error in one does not affect the others. `read`: read the table again."""
        if read:
            self._rows = {str(doc["_id"]): doc for doc in self._store.list(TABLE)}
            self._ended = {uid: kept for uid, kept in self._ended.items() if uid in self._rows}
        for doc in list(self._rows.values()):
            try:
                self._sync_one(doc, snapshot)
            except (Conflict, Rejected) as error:
                log.info("Slaml %s/%s: %s; looking again", doc.get("namespace"), doc.get("name"), error)
            except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
                log.exception("Slaml %s/%s", doc.get("namespace"), doc.get("name"))

    def _sync_one(self, doc: SlamlRow, snapshot: ClusterSnapshot) -> None:
        if doc.get("deleted"):
            self._delete(Slaml.from_row(doc))
            return
        judged = doc.get("judged") or {}
        current = judged.get("generation") == doc.get("generation")
        if current and doc.get("finished"):
            return
        if not current or judged.get("reason") == INFEASIBLE:
            doc = self._judge(doc, snapshot)
        slaml = Slaml.from_row(doc)
        if (doc.get("judged") or {}).get("accepted") and not doc.get("inserted"):
            slaml = self._insert(slaml)
        if doc.get("judged"):
            self._update_status(slaml, snapshot)

    def _write(self, slaml: SlamlRow, changes: SlamlChanges) -> SlamlRow:
        after = self._store.update(TABLE, slaml["_id"], {"version": slaml.get("version")}, changes)
        self._rows[str(slaml["_id"])] = after
        return after

    # acceptance

    def _judge(self, doc: SlamlRow, snapshot: ClusterSnapshot) -> SlamlRow:
        """Decide on acceptance. Its deadline counts from its creation, or from the edit of a refused one."""
        wall = self._clock.wall()
        created = number(doc.get("created")) or wall
        since = doc.get("since") if doc.get("plan") else min(created, wall) if doc.get("generation") == 1 else wall
        slaml = Slaml.from_row(doc)
        found = slaml_status.judge(slaml, snapshot, self._settings)
        if found is None:
            return doc
        if doc.get("plan"):  # its tasks run already, so a new target cannot refuse it
            found = AdmissionVerdict(
                True, "Accepted", f"It was accepted before; now: {found.sentence}", found.minimum_s
            )
        judged = {**found.doc, "generation": doc.get("generation")}
        if judged == doc.get("judged"):
            return doc
        changes: SlamlChanges = {"judged": judged, "since": since}
        if found.accepted and not doc.get("plan"):
            changes |= {"plan": slaml.plan, "again": self._needs_suffix(slaml)}
        self._explain(slaml, judged, wall)
        return self._write(doc, changes)

    def _needs_suffix(self, slaml: Slaml) -> bool:
        """True if jobs of an earlier Slaml already have the ids that its own would get."""
        twins = [twin for job in documents(slaml) for twin in self._store.list("jobs", {"job_id": job["job_id"]})]
        return any(not str(twin["_id"]).startswith(f"slaml-{slaml.uid}-") for twin in twins)

    def _explain(self, slaml: Slaml, judged: Mapping[str, Any], wall: float) -> None:
        decision = {
            "_id": f"{slaml.id}-{slaml.uid[:8]}-g{judged['generation']}",
            "job_id": slaml.id,
            "at": wall,
            "kind": "accept" if judged["accepted"] else "refuse",
            "algorithm": ALGORITHM,
            "candidates": [],
            "sentence": judged["sentence"],
        }
        self._store.put("decisions", decision)

    def _insert(self, slaml: Slaml) -> Slaml:
        for job in documents(slaml):
            try:
                self._store.insert("jobs", {**job, **plain(pod_fields.storable_pod(job))})
            except Conflict:
                log.info("job %s was inserted already", job["job_id"])
        return Slaml.from_row(self._write(slaml.doc, {"inserted": True}))

    # after acceptance

    def _update_status(self, slaml: Slaml, snapshot: ClusterSnapshot) -> None:
        """Write its status, and copy an edited deadline to the jobs that have not ended."""
        jobs = self._jobs(slaml) if slaml.doc.get("inserted") else []
        wall = self._clock.wall()
        at = Moment(self._clock.now(), wall, self._clock.boot_id())
        replicas = [[slaml_status.replica(job, at) for job in of_task] for of_task in jobs]
        for job in (job for of_task in jobs for job in of_task):
            record = self._cache.job(str(job["job_id"])) if job is not None else None
            if record is not None and record.state not in s.ENDED and record.doc.get("sla") != slaml.target_s:
                self._cache.write_job(record, {"sla": slaml.target_s}, "sla")
        over = bool(jobs) and all(job is None or job.get("closed") for of_task in jobs for job in of_task)
        changes: SlamlChanges = {"status": slaml_status.status(slaml, replicas, snapshot, self._settings, wall)}
        if over and not slaml.doc.get("finished"):
            changes["finished"] = wall
        if any(slaml.doc.get(name) != value for name, value in changes.items()):
            self._write(slaml.doc, changes)

    def _jobs(self, slaml: Slaml) -> list[list[JobRow | None]]:
        """Return its job documents by task; None for a deleted one."""
        return [
            [self._job(slaml, place, replica) for replica in range(part.replicas)]
            for place, part in enumerate(slaml.parts)
        ]

    def _job(self, slaml: Slaml, place: int, replica: int) -> JobRow | None:
        key, kept = slaml.key(place, replica), self._ended.setdefault(slaml.uid, {})
        if key in kept:
            return kept[key]
        record = self._cache.job(slaml.job_id(place, replica))
        doc: JobRow | None = record.doc if record is not None and record.key == key else self._store.get("jobs", key)
        if doc is not None and doc.get("closed"):
            kept[key] = doc
        return doc

    def _delete(self, slaml: Slaml) -> None:
        """Cancel the open jobs of a deleted Slaml and delete its row; job documents stay."""
        for job in (job for of_task in self._jobs(slaml) for job in of_task):
            if job is None or job.get("closed") or job.get("cancel"):
                continue
            record = JobRecord(job)
            why: JobChanges = {"cancel_reason": f"its Slaml {slaml.name} was deleted"}
            ended: JobChanges = {"state": s.CANCELLED, "closed": True, "finish_ts": self._clock.wall()}
            changes: JobChanges = {"cancel": True, **why} if record.accepted else ended
            self._cache.write_job(record, changes, "cancel")
        self._store.delete(TABLE, slaml.doc["_id"], {"version": slaml.doc.get("version")})
        self._rows.pop(slaml.uid, None)
