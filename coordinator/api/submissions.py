"""Takes jobs that users submit over HTTP, as a writer with access to the store could insert them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from coordinator.api.access import Access, UserService
from coordinator.api.job_views import JobViews
from coordinator.caller import FORBIDDEN, Caller, Tenant
from coordinator.errors import Conflict, Rejected
from coordinator.model import fields, pod_fields
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.schema import dataset_fields
from coordinator.model.tables import plain
from coordinator.ports import Doc, Store
from coordinator.scheduling import dependencies, intake
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache

View = dict[str, Any]

ENDING = (
    "The job was not accepted: a job {!r} is just being ended; its name is free in some seconds, then submit again."
)
NEVER_OF_CALLERS = ("_id", "version", "origin", "volcano", "slaml")  # of documents that are written into the store


class Submissions(UserService):
    """Thread-safe."""

    def __init__(
        self,
        access: Access,
        store: Store,
        cache: Cache,
        loop: DecisionLoop,
        views: JobViews,
        read_store: Callable[[], None],
    ) -> None:
        """`read_store` makes the loop read at once."""
        super().__init__(access)
        self._store = store
        self._cache = cache
        self._loop = loop
        self._views = views
        self._read_store = read_store

    def submit(self, doc: View, dry_run: bool = False) -> View:
        """Check a job document and insert it; returns the job's view. `dry_run`: only check it.

        A bad document is not stored: `Rejected` with `problems`. The job of a user belongs to that user.
        """
        with self.access.nameless_refusals(of_jobs=False):  # names of jobs in it are those that were sent
            view = self._submit(doc, dry_run)
        if not dry_run:
            self.access.note_change("submit", str(view["job_id"]), str(view["job_id"]))
        return view

    def rerun(self, job_id: str) -> View:
        """Submit a job that has ended once more, as its user had submitted it; returns its view."""
        job = self.access.find_ended(job_id, "read")
        if self._caller is not None and not self._caller.may_rerun(job):
            raise Rejected(self._caller.rerun_refusal(job), FORBIDDEN)
        if job.doc.get("origin") == "volcano":
            raise Rejected(f"Job {job_id} is a Volcano Job of its user: apply that again with kubectl.", 409)
        asked = fields.PUBLIC - {"state", "node", "hold", *(() if job.uses_cpu else ("num_gpus",))}
        doc = {name: value for name, value in plain(job.doc).items() if name in asked and value is not None}
        pin = job.doc.get("pinned")
        with self.access.nameless_refusals(of_jobs=False):
            view = self._submit(doc | ({"node": pin} if pin else {}))
        self.access.note_change("rerun", job_id, job_id)
        return view

    def _submit(self, doc: View, dry_run: bool = False) -> View:
        doc = {"state": s.SUBMITTED, **{k: v for k, v in doc.items() if k not in fields.NOT_SUBMITTED}}
        if self._caller is not None:
            doc = _owned_by_caller(doc, self._caller)
        found = intake.problems(doc, self._loop.builds_images)
        loop = self._loop
        if not found and (
            why := loop.unknown_type(doc) or loop.refused_by_shares(doc) or loop.refused_without_volcano(doc)
        ):
            found = [why]
        if found:
            raise Rejected("The job was not accepted: " + "; ".join(found) + ".", problems=tuple(found))
        if doc.get("job_id") is None:
            doc["job_id"] = f"job-{secrets.token_hex(4)}"
        key = self._free_key(doc["job_id"])
        if circle := self._circle_problem(JobRecord(doc | {"_id": key})):
            circle = str(self.access.without_names_in(circle))
            raise Rejected(f"The job was not accepted: {circle}.", problems=(circle,))
        shown = JobRecord(doc | {"_id": key, "job_type": intake.job_type(doc)})
        if dry_run:
            return self._shown_job(shown)
        try:
            self._store.insert("jobs", {"_id": key, **doc, **plain(pod_fields.storable_pod(doc))})
        except Conflict:
            raise Rejected(_name_is_taken(doc), 409) from None
        self._read_store()
        return self._shown_job(shown)

    def _shown_job(self, job: JobRecord) -> View:
        return self._views.view(job, self.access)

    def _circle_problem(self, job: JobRecord) -> str:
        """Return why the job could never start, as it would wait for itself; empty if it may be submitted.

        Of two that are submitted at the same moment neither may know of the other: then both say so as they wait.
        """
        if not dependencies.is_waiting(job):
            return ""
        new = {one.id: one for one in map(JobRecord, self._store.list("jobs", {"closed": None}))} | {job.id: job}

        def waits_for(job_id: str) -> tuple[str, ...]:
            found = new.get(job_id) or self._cache.job(job_id)
            return (
                dependencies.dependency_ids(found.doc) if found is not None and dependencies.is_waiting(found) else ()
            )

        return dependencies.circle_problem(job.id, waits_for)

    def _free_key(self, name: str | int) -> str:
        """Return the `_id` of a new job of that name: the name, or `name~2` where an ended job had it.

        No name holds `~`.
        """
        before = self._cache.named(str(name))
        if alive := [job for job in before if not job.doc.get("closed")]:
            ending = all(job.cancel or job.state in s.ENDED for job in alive)
            raise Rejected(ENDING.format(name) if ending else _name_is_taken({"job_id": name}), 409)
        used = {str(job.key) for job in before}
        return next(key for key in (str(name), *(f"{name}~{n}" for n in range(2, len(used) + 3))) if key not in used)


def _owned_by_caller(doc: View, caller: Caller) -> View:
    """Return the document of a job that belongs to whoever calls; `Rejected` where it says otherwise."""
    if doc.get("owner") not in (None, caller.name):
        raise Rejected(f"owner is {caller.name}, who submits the job: leave it out, or write that.", FORBIDDEN)
    own = {field: value for field, value in doc.items() if field not in NEVER_OF_CALLERS}
    if isinstance(caller, Tenant):
        return {**own, "owner": caller.name, "namespace": caller.place(doc.get("namespace"))}
    if dataset_fields.address(doc) is not None:
        raise Rejected("A shared `reshape up` fetches no data sets: fetch it yourself and give its path as dataset.")
    return {**own, "owner": caller.name, "owner_uid": caller.uid}


def _name_is_taken(doc: Doc) -> str:
    return f"The job was not accepted: {intake.name_taken(doc['job_id'])}."
