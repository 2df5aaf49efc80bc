"""The API for one user of a shared machine: implements `coordinator.http.coordinator_api.CoordinatorApi`.

Promises: only the owner of a job, root and members of `reshape-admin` change it and read its output, code, words and
progress; others see its name, owner, state and counts, or nothing of it (`RESHAPE_OTHERS_SEEN=0`). What concerns all
users is for administrators. An operation that is not written here is not there for anybody. What is asked of one job
is judged where that job's document is found (`OperatorRequests.find_own`), so that nothing comes between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coordinator.api.api_service import ApiService
from coordinator.caller import FORBIDDEN, Caller
from coordinator.errors import Rejected

View = dict[str, Any]

EVENT_SEEN = (
    "_id",
    "type",
    "at",
    "job_id",
    "state",
    "generation",
    "num_gpus",
    "gpu_id",
    "held_by",
    "from_gpus",
    "to_gpus",
    "to",
)
DECISION_SEEN = ("decision_id", "job_id", "jobs", "at", "kind", "algorithm")
GPU_USER = ("job_id", "held_by", "worker_id")
NAMING = (
    "message",
    "because",
    "receipt",
    "binds",
    "starts_if",
    "start_guesses",
    "yields_to",
    "warnings",
    "problems",
    "sentence",
    "jobs",
    "victim",
    "more_victims",
    "unchanged_guesses",
    "for",
)
"""Fields of jobs, decisions and events in which other jobs are named."""
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9_-]|[A-Za-z0-9]")
OF_OTHERS = "A decision about jobs of other users."


class CallerApi:
    """Thread-safe, as `ApiService` is."""

    def __init__(self, api: ApiService, caller: Caller) -> None:
        self._all = api
        self._own = api.of_caller(caller)
        self._caller = caller

    # jobs

    def submit(self, doc: View, dry_run: bool = False) -> View:
        view = self._own.submit(doc, dry_run)
        return view if dry_run else self._noted("submit", str(view["job_id"]), view)

    def rerun(self, job_id: str) -> View:
        return self._noted("rerun", job_id, self._own.rerun(job_id))

    def jobs(self, include_ended: bool, within_s: float = 0.0) -> list[View]:
        return list(map(self._nameless, self._own.jobs(include_ended, within_s)))

    def job(self, job_id: str) -> View:
        return self._nameless(self._own.job(job_id))

    def jobs_page(self, group: str, named: str, offset: int, limit: int) -> View:
        page = self._own.jobs_page(group, named, offset, limit)
        return page | {"jobs": list(map(self._nameless, page["jobs"]))}

    def _nameless(self, view: View) -> View:
        """Leave out the names of others' jobs that stand in words about an own one, where those are not to be seen."""
        if self._caller.others_seen or self._caller.admin:
            return view
        return view | {field: self._without_names(view[field]) for field in NAMING if field in view}

    def _without_names(self, value: Any) -> Any:
        match value:
            case str():
                return WORD.sub(lambda found: self._own.name_for_caller(found[0]), value)
            case list() | tuple():
                return [self._without_names(part) for part in value]
            case dict():
                return {field: self._without_names(part) for field, part in value.items()}
        return value

    def open_jobs(self, job_ids: Iterable[str]) -> dict[str, View]:
        return self._own.open_jobs(job_ids)

    def curve(self, job_id: str) -> View:
        return self._own.curve(job_id)

    def cancel(self, job_id: str) -> View:
        return self._noted("cancel", job_id, self._own.cancel(job_id))

    def request(self, job_id: str, gpus: int | None, signal: str | None, force: bool = False) -> View:
        return self._noted(signal or "reshape", job_id, self._own.request(job_id, gpus, signal, force))

    def remove(self, job_id: str) -> View:
        return self._noted("remove", job_id, self._own.remove(job_id))

    def suspend(self, job_id: str) -> View:
        return self._noted("suspend", job_id, self._own.suspend(job_id))

    def resume(self, job_id: str) -> View:
        return self._noted("resume", job_id, self._own.resume(job_id))

    def logs(self, job_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        return self._own.logs(job_id, offset, limit)

    def log_tail(self, job_id: str) -> bytes:
        return self._own.log_tail(job_id)

    def _noted(self, verb: str, job_id: str, answer: View) -> View:
        """Note who has changed a job; returns the answer."""
        self._own.note_change(verb, job_id, job_id)
        return answer

    # what all see, without what is others' own

    def gpus(self) -> list[View]:
        return [self._gpu(view) for view in self._all.gpus()]

    def _gpu(self, view: View) -> View:
        names = {str(view[field]) for field in GPU_USER if view[field] is not None}
        if self._caller.others_seen or all(map(self._own.is_own, names)):
            return view
        return view | dict.fromkeys(GPU_USER)

    def nodes(self) -> list[View]:
        return self._all.nodes()

    def decisions(self, job_id: str | None, limit: int) -> list[View]:
        return self._decisions(self._all.decisions(job_id, limit))

    def decision(self, decision_id: str) -> View:
        for view in self._decisions([self._all.decision(decision_id)]):
            return view
        raise Rejected(f"There is no decision {decision_id!r}.", 404)

    def decided(self, offset: int, limit: int) -> tuple[list[View], bool]:
        found, more = self._all.decided(offset, limit)
        return self._decisions(found), more

    def _decisions(self, views: Iterable[View]) -> list[View]:
        """Return those that the caller may see; of jobs of others alone no more than that there is one."""
        return [shown for view in views if (shown := self._decision(view)) is not None]

    def _decision(self, view: View) -> View | None:
        names = {str(view.get("job_id")), *map(str, view.get("jobs") or ())}
        if self._caller.admin or any(self._own.is_own(name, view["at"]) for name in names):
            return view if self._caller.others_seen or self._caller.admin else self._nameless(view | {"candidates": []})
        if not self._caller.others_seen:
            return None
        shown = {field: view[field] for field in DECISION_SEEN if field in view}
        return shown | {"sentence": OF_OTHERS, "candidates": [], "receipt": None}

    def events_after(self, seq: int, limit: int) -> list[View]:
        return [self._event(event) for event in self._all.events_after(seq, limit)]

    def history(self) -> list[View]:
        return [self._event(event) for event in self._all.history()]

    def _event(self, event: View) -> View:
        """Return what the caller may see of an event; its number always, since followers continue after it."""
        if self._caller.admin or event.get("owner_uid") == self._caller.uid:
            return self._nameless(event)
        if event.get("job_id") is None or self._caller.others_seen:
            return {field: event[field] for field in EVENT_SEEN if field in event}
        return {"_id": event["_id"], "at": event.get("at"), "type": "hidden"}

    def coming(self) -> list[tuple[str, str, float, float]]:
        coming = self._all.coming()
        if self._caller.others_seen or self._caller.admin:
            return coming
        return [one for one in coming if self._own.is_own(one[1])]

    def last_event(self) -> int:
        return self._all.last_event()

    def on_event(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._all.on_event(callback)

    def policy(self) -> View:
        return self._all.policy()

    def shares(self) -> View:
        view = self._all.shares()
        return view | {"users": self._rows_of_users(view["users"])}

    def usage(self, since: float) -> list[View]:
        return self._rows_of_users(self._all.usage(since))

    def _rows_of_users(self, rows: list[View]) -> list[View]:
        """Return the rows of users that the caller may see."""
        if self._caller.others_seen or self._caller.admin:
            return rows
        return [row for row in rows if row["user"] == self._caller.name]

    def health(self) -> View:
        return self._all.health()

    def wall(self) -> float:
        return self._all.wall()

    # what concerns all users

    def snapshot(self) -> View:
        self._caller.require_admin("simulate with the jobs of all users")
        return self._all.snapshot()

    def journal(self, within_s: float = 0.0) -> View:
        self._caller.require_admin("read what all users have submitted")
        return self._all.journal(within_s)

    def what_if(self, fields: Mapping[str, str]) -> View:
        self._caller.require_admin("simulate with the jobs of all users")
        return self._all.what_if(fields)

    def set_shares(self, text: str) -> View:
        self._caller.require_admin("set the shares of users and queues")
        answer = self._all.set_shares(text)
        self._own.note_change("shares", self._caller.name)
        return answer

    def drain(self, node: str, drained: bool) -> View:
        answer = self._own.drain(node, drained)
        self._own.note_change("drain" if drained else "undrain", node)
        return answer

    def profiles(self, table: str) -> list[View]:
        self._caller.require_admin("read the profiles of all users' jobs")
        return self._all.profiles(table)

    def import_profiles(self, table: str, rows: list[View]) -> int:
        self._caller.require_admin("import profiles")
        imported = self._all.import_profiles(table, rows)
        self._own.note_change("import", table)
        return imported

    # what a shared machine does not offer

    def apply_slaml(self, item: View, dry_run: bool = False) -> View:
        raise self._no_slamls()

    def slamls(self) -> list[View]:
        return []

    def delete_slaml(self, slaml_id: str) -> View:
        raise self._no_slamls()

    @staticmethod
    def _no_slamls() -> Rejected:
        return Rejected("A shared `reshape up` takes no Slamls: give each job its deadline as sla.", FORBIDDEN)
