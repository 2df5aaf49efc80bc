"""Operations of the coordinator for HTTP callers: implements `coordinator.http.coordinator_api.CoordinatorApi`."""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from coordinator.api import profile_rows, views
from coordinator.api.decided import Decided
from coordinator.api.ended_jobs import EndedJobs
from coordinator.api.journal_view import Journal, journal_view
from coordinator.api.operator_requests import OperatorRequests
from coordinator.api.page_reads import PageReads
from coordinator.api.shares_view import shares_view, usage_view
from coordinator.api.signed_messages import SignedMessages
from coordinator.api.snapshot_view import snapshot_view
from coordinator.api.volcano_extender import VolcanoExtender
from coordinator.caller import FORBIDDEN, Caller
from coordinator.config import Config
from coordinator.errors import Conflict, Rejected, Transient
from coordinator.events.event_log import EventLog
from coordinator.events.metrics import Metrics
from coordinator.expected_times import ExpectedTimes
from coordinator.forecasts import what_if_form
from coordinator.forecasts.forecaster import Forecaster
from coordinator.forecasts.intervals import WhenExpected
from coordinator.model import fields, pod_fields
from coordinator.model import states as s
from coordinator.model.events import UserAsked
from coordinator.model.records import GpuRecord, JobRecord, takes_work
from coordinator.model.schema import dataset_fields
from coordinator.model.tables import plain
from coordinator.ports import Clock, Doc, Platform, Sidecars, Store, moment_of
from coordinator.reconcile.reconciler import Unanswered
from coordinator.scheduling import dependencies, intake
from coordinator.scheduling.loop import DecisionLoop
from coordinator.scheduling.slaml.slaml_requests import SlamlRequests
from coordinator.stores.cache import Cache
from coordinator.stores.elector import Elector
from coordinator.telemetry.ingest import Telemetry
from coordinator.telemetry.measured.other_load import held_by_others
from coordinator.telemetry.node_load import NodeLoad
from coordinator.telemetry.profile_estimator import OBSERVATIONS
from sidecar.protocol import GpuReading

View = dict[str, Any]

ENDING = (
    "The job was not accepted: a job {!r} is just being ended; its name is free in some seconds, then submit again."
)
NEVER_OF_CALLERS = ("_id", "version", "origin", "volcano", "slaml")  # of documents that are written into the store
# A node before its GPUs are counted.
NO_GPUS: View = {
    "gpu_type": None, "gpus": 0, "idle": 0, "cores": None, "emulated": False, "heard": True, "schedulable": True,
    "drained": False,
}  # fmt: skip


class ApiService(PageReads):
    """Thread-safe; every method may be called from any thread and is quick."""

    def __init__(
        self,
        *,
        store: Store,
        sidecars: Sidecars,
        platform: Platform,
        clock: Clock,
        config: Config,
        master_key: bytes,
        agent_key: bytes,
        elector: Elector,
        cache: Cache,
        telemetry: Telemetry,
        loop: DecisionLoop,
        forecaster: Forecaster,
        event_log: EventLog,
        metrics: Metrics,
        read_store: Callable[[], None],
        notify: Callable[[str | None], None],
        trouble: Callable[[], str],
        unanswered: Callable[[str], Unanswered | None],
        succeeded: Callable[[], bool],
    ) -> None:
        """`read_store` makes the loop read at once; `notify` wakes it, and the reconciler for a job.

        `trouble` returns why the coordinator does not work, as a sentence; empty if it does. `unanswered` returns the
        command to a job's sidecar that is sent again until it is answered; `succeeded`, whether another one acts now.
        """
        super().__init__()
        self._store, self._platform, self._clock = store, platform, clock
        self._elector, self._cache, self._telemetry = elector, cache, telemetry
        self._loop, self._event_log, self._metrics = loop, event_log, metrics
        self._forecaster = forecaster
        self._read_store, self._trouble = read_store, trouble
        self._unanswered = unanswered
        self._operator = OperatorRequests(cache, sidecars, telemetry, clock, config, master_key, read_store, notify)
        self._messages = SignedMessages(
            cache,
            telemetry,
            metrics,
            clock,
            config,
            master_key,
            agent_key,
            self.acts,
            succeeded,
            notify,
            loop.node_load_of,
            self._operator.request,
        )
        self._extender = VolcanoExtender(cache.job, lambda: loop.queues, cache.node_of)
        self._ended = EndedJobs(store, event_log, clock)
        self._decided = Decided(store, cache, config.keep)
        self._slamls = SlamlRequests(store, clock, config.many_pods, read_store)

    def of_caller(self, caller: Caller) -> ApiService:
        """Return the same for one user of a shared machine: who may change own jobs, and sees little of others'.

        `coordinator.api.caller_api.CallerApi` guards the operations that are not about one job.
        """
        restricted = copy.copy(self)
        restricted._caller = caller
        restricted._operator = self._operator.of_caller(caller)
        return restricted

    # jobs

    def submit(self, doc: View, dry_run: bool = False) -> View:
        """Check a job document and insert it, as a writer with access to the store could. `dry_run`: only check."""
        doc = {"state": s.SUBMITTED, **{k: v for k, v in doc.items() if k not in fields.NOT_SUBMITTED}}
        if self._caller is not None:
            doc = _owned(doc, self._caller)
        found = intake.problems(doc, self._loop.builds_images)
        if not found and (why := self._loop.unknown_type(doc) or self._loop.refused_by_shares(doc)):
            found = [why]
        if found:
            raise Rejected("The job was not accepted: " + "; ".join(found) + ".", problems=tuple(found))
        if doc.get("job_id") is None:
            doc["job_id"] = f"job-{secrets.token_hex(4)}"
        key = self._free_key(doc["job_id"])
        if circle := self._circle_problem(JobRecord(doc | {"_id": key})):
            raise Rejected(f"The job was not accepted: {circle}.", problems=(circle,))
        shown = JobRecord(doc | {"_id": key, "job_type": intake.job_type(doc)})
        if dry_run:
            return self._view(shown)
        try:
            self._store.insert("jobs", {"_id": key, **doc, **plain(pod_fields.storable_pod(doc))})
        except Conflict:
            raise Rejected(_taken(doc), 409) from None
        self._read_store()
        return self._view(shown)

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

    def rerun(self, job_id: str) -> View:
        """Submit what the user had submitted, once more."""
        job = self._operator.find_ended(job_id)
        if self._caller is not None and not self._caller.owns(job):  # it would run as this user
            raise Rejected(f"Job {job_id} belongs to another user, who alone may run it once more.", FORBIDDEN)
        if job.doc.get("origin") == "volcano":
            raise Rejected(f"Job {job_id} is a Volcano Job of its user: apply that again with kubectl.", 409)
        asked = fields.PUBLIC - {"state", "node", *(() if job.uses_cpu else ("num_gpus",))}
        doc = {name: value for name, value in plain(job.doc).items() if name in asked and value is not None}
        return self.submit({**doc, **({"node": pin} if (pin := job.doc.get("pinned")) else {})})

    def policy(self) -> View:
        settings, how = msgspec.to_builtins(self._loop.settings), self._loop.config.reshape_by
        return {"systems": list(self._loop.settings.systems), "reshape_by": how, "settings": settings}

    def shares(self) -> View:
        loop = self._loop
        return shares_view(
            loop.shares_file.shares,
            loop.accounts.standings,
            loop.last_snapshot,
            self._clock.now(),
            loop.config.shares,
            loop.shares_file.problem,
        )

    def set_shares(self, text: str) -> View:
        gpus = len(self._cache.gpus())
        self._loop.shares_file.write(text, gpus)
        self._read_store()
        return self.shares()

    def usage(self, since: float) -> list[View]:
        return usage_view(self._loop.accounts.rows(since))

    def _free_key(self, name: str | int) -> str:
        """The `_id` of a new job of that name: the name, or `name~2` where an ended job had it (no name holds `~`)."""
        before = self._cache.named(str(name))
        if alive := [job for job in before if not job.doc.get("closed")]:
            ending = all(job.cancel or job.state in s.ENDED for job in alive)
            raise Rejected(ENDING.format(name) if ending else _taken({"job_id": name}), 409)
        used = {str(job.key) for job in before}
        return next(key for key in (str(name), *(f"{name}~{n}" for n in range(2, len(used) + 3))) if key not in used)

    def jobs(self, include_ended: bool, within_s: float = 0.0) -> list[View]:
        records = {str(doc["_id"]): JobRecord(doc) for doc in self._store.list("jobs", {"closed": None})}
        records |= {str(j.key): j for j in (*self._cache.jobs().values(), *self._cache.set_aside().values())}
        since = 0.0 if include_ended else self._clock.wall() - within_s if within_s else math.inf
        for job in self._ended.ended_since(since):
            records.setdefault(str(job.key), job)
        ordered = sorted(records.values(), key=lambda j: (j.submit_ts, j.id))
        expected = self._loop.expected_times()
        return [
            self._view(j, expected)
            for j in ordered
            if (j.state not in s.ENDED or j.finish_ts >= since) and self._sees(j)
        ]

    def job(self, job_id: str) -> View:
        job = self._operator.find(job_id)
        if not self._sees(job):
            raise self._operator.missing(job_id)
        if self._hides(job):
            return self._view(job)
        why, change = self._loop.reasons.of(job.id) if job.state == s.SUBMITTED and job.accepted else ("", None)
        view = self._view(job, self._loop.expected_times()) | views.starts_if(change)
        return {**view, "message": why or view["message"], **self._decided.of_job(job)}

    def cancel(self, job_id: str) -> View:
        return self._view(self._operator.cancel(job_id))

    def request(self, job_id: str, gpus: int | None, signal: str | None, force: bool = False) -> View:
        return self._operator.request(job_id, gpus, signal, force)

    def apply_slaml(self, item: View, dry_run: bool = False) -> View:
        return self._slamls.apply(item, dry_run)

    def slamls(self) -> list[View]:
        return self._slamls.all()

    def delete_slaml(self, slaml_id: str) -> View:
        return self._slamls.delete(slaml_id)

    def remove(self, job_id: str) -> View:
        return self._operator.remove(job_id)

    def suspend(self, job_id: str) -> View:
        return self._operator.suspend(job_id)

    def resume(self, job_id: str) -> View:
        return self._operator.resume(job_id)

    def drain(self, node: str, drained: bool) -> View:
        return self._operator.drain(node, drained)

    def logs(self, job_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        return self._platform.output(self._operator.find_own(job_id).doc, offset, limit)

    def _view(self, job: JobRecord, expected: tuple[Mapping[str, ExpectedTimes], float] = ({}, 0.0)) -> View:
        view = self._whole_view(job, expected)
        return views.of_another_user(view) if self._hides(job) else view

    def _whole_view(self, job: JobRecord, expected: tuple[Mapping[str, ExpectedTimes], float]) -> View:
        gpus = self._cache.gpus()
        node_gpus = [g for g in gpus.values() if job.node in (None, g.node) and not job.uses_cpu]
        emulated = any(g.doc.get("emulated") for g in node_gpus)
        if job.doc.get("closed"):  # another job may have its name by now, which all reports are of
            view = views.job_view(job, None, {}, emulated)
            times = views.times(job, view, *expected, self._clock.wall()) | views.between(WhenExpected())
            return {**view, **times, "pods": []}
        stored, (_, efficiency, needs) = self._telemetry.batches.row(job), self._telemetry.progress.of(job)
        beat, used_from = self._telemetry.report(job)
        view = views.job_view(job, beat, stored, emulated, needs, efficiency)
        view["usage"] |= {"used_from": used_from}
        view["problems"] = [*view["problems"], *self._cache.invalid_fields_of(job), *self._loop.unmarked.of(job)]
        reports = self._telemetry.reports
        at = moment_of(self._clock)
        if reports.stale_s(job) < 0:
            silent_s = max(reports.silent_s(job, member) for member in range(job.members))
            lives_on = self._loop.config.many_pods and job.unleased
            view |= views.silence(job, silent_s) if lives_on else views.no_report(job, view, silent_s)
        if (unanswered := self._unanswered(job.id)) is not None:
            view |= views.no_answer(view, unanswered.command, at.now - unanswered.since, unanswered.why)
        view |= views.standstill(job, at)
        view |= views.time_left(job, view, at)
        view |= views.pause(job, beat, self._telemetry.reshape_s(job))
        pods = views.pods_view(job, self._telemetry.reports.pods(job), gpus)
        why = views.starts_if(self._loop.reasons.known(job.id))
        times = views.times(job, view, *expected, self._clock.wall()) | views.between(self._forecaster.of(job))
        return {**view, **times, **why, "pods": pods}

    def snapshot(self) -> View:
        at = self._forecaster.present()
        return snapshot_view(at.snapshot, at.now, self._loop.settings, at.relaunches, at.silent_s, at.held)

    def journal(self, within_s: float = 0.0) -> View:
        until, (present, _) = self._clock.wall(), self._loop.present()
        since = until - within_s if within_s else 0.0
        jobs = {str(job.key): job for job in self._ended.ended_since(since)}
        jobs |= {str(job.key): job for job in self._cache.jobs().values()}
        predicted = {j.id: j.iterations_left + j.iterations_done for j in present.jobs if j.iterations_left is not None}
        began = min((job.submit_ts for job in jobs.values()), default=until)
        events = [event for event in self._event_log.events_since(began) if event["type"] == "gpu"]
        journal = Journal(list(jobs.values()), events, predicted, began, until)
        relaunches = self._loop.config.reshape_by == "relaunch"
        return journal_view(journal, present.nodes, self._loop.inputs, self._loop.settings, relaunches)

    def what_if(self, fields: Mapping[str, str]) -> View:
        return what_if_form.answer(self._forecaster.live(), fields)

    # GPUs, decisions, events, profiles

    def gpus(self) -> list[View]:
        readings = {g.gpu_id: g for beat in self._telemetry.reports.all() for g in beat.gpus}
        stored = self._telemetry.batches.gpu_rows()
        ordered = sorted(self._cache.gpus().values(), key=lambda g: (g.node, g.doc.get("index") or 0, g.id))
        misfits = self._cache.invalid_fields("gpus")
        return [self._gpu_view(g, readings, stored, "; ".join(misfits.get(g.id, ()))) for g in ordered]

    @staticmethod
    def _gpu_view(gpu: GpuRecord, readings: Mapping[str, GpuReading], stored: Mapping[str, Doc], misfit: str) -> View:
        in_use = gpu.held_by is not None
        read, kept = (readings.get(gpu.id), stored.get(gpu.id, {})) if in_use else (None, {})
        view = views.gpu_view(gpu, read, kept)
        return {**view, "problem": misfit or view["problem"]}

    def nodes(self) -> list[View]:
        known = self._telemetry.nodes.as_heard(self._loop.inputs.nodes)
        nodes = {
            name: {
                **NO_GPUS, "node": name, "cores": doc.get("cores"), "heard": doc.get("heard") is not False,
                "schedulable": takes_work(doc), "drained": bool(doc.get("drained")),
                **views.others_view(held_by_others(doc)),
            }
            for name, doc in known.items()
        }  # fmt: skip
        for gpu in self.gpus():
            node = nodes.setdefault(gpu["node"], {**NO_GPUS, "node": gpu["node"]})
            node["gpu_type"] = node["gpu_type"] or gpu["gpu_type"]
            node["gpus"] += 1
            node["idle"] += gpu["state"] == s.IDLE
            node["emulated"] = node["emulated"] or gpu["emulated"]
        node_loads = self._loop.node_loads
        return [
            {
                **nodes[name],
                **views.node_load_view(node_loads.get(name, NodeLoad()), self._telemetry.nodes.jobs_of(name)),
            }
            for name in sorted(nodes)
        ]

    def decisions(self, job_id: str | None, limit: int) -> list[View]:
        return self._decided.newest(job_id, limit)

    def decision(self, decision_id: str) -> View:
        return self._decided.one(decision_id)

    def events_after(self, seq: int, limit: int) -> list[View]:
        return self._event_log.after(seq, limit)

    def last_event(self) -> int:
        return self._event_log.last()

    def on_event(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._event_log.listen(callback)

    def profiles(self, table: str) -> list[View]:
        """The rows of this table, with what was learned until now."""
        rows = {row["_id"]: row for row in self._store.list(profile_rows.table(table))}
        rows |= self._telemetry.estimator.unwritten(table)
        return [{k: v for k, v in row.items() if k != "version"} for row in rows.values()]

    def import_profiles(self, table: str, rows: list[View]) -> int:
        """Store all rows or none. A row replaces the one of the same key and origin."""
        found = profile_rows.row_problems(profile_rows.table(table), rows)
        if found:
            raise Rejected("No row was imported: " + "; ".join(found[:5]) + ".", problems=tuple(found[:50]))
        known = {profile_rows.describes(row): row["_id"] for row in self._store.list(table)}
        keys = [profile_rows.describes(row) for row in rows]
        docs = [{**r, "origin": k[-1], "_id": known.get(k, "|".join(k))} for r, k in zip(rows, keys, strict=True)]
        for doc in docs:
            self._store.put(table, doc)
        if table == OBSERVATIONS:
            self._telemetry.estimator.know(docs)
        self._read_store()
        return len(rows)

    def note_change(self, verb: str, about: str, job_id: Any = None) -> None:
        """Append who has changed what, on a shared machine. `job_id`: of the job that it is about."""
        if self._caller is not None:
            asked = UserAsked(self._caller.name, verb, about)
            self._event_log.append({"job_id": job_id, "owner_uid": self._caller.uid, **asked.public()})

    # sidecars

    def heartbeat(self, job_id: str, launch: int, raw: bytes, signature: str) -> tuple[bytes, str]:
        return self._messages.heartbeat(job_id, launch, raw, signature)

    def knows(self, job_id: str) -> bool:
        return self._cache.job(job_id) is not None

    def take_request(self, job_id: str, launch: int, raw: bytes, signature: str) -> tuple[bytes, str]:
        return self._messages.take_request(job_id, launch, raw, signature)

    def node_reported(self, name: str, path: str, raw: bytes, signature: str) -> tuple[bytes, str]:
        return self._messages.node(name, path, raw, signature)

    # the coordinator itself

    def health(self) -> View:
        trouble = self._trouble()
        ok = not trouble and self._elector.leads
        return {"ok": ok, "sentence": "All is well." if ok else trouble or "This coordinator does not act now."}

    def acts(self) -> bool:
        return self._elector.leads

    def extend(self, verb: str, raw: bytes) -> bytes:
        if not self._elector.leads:  # Volcano then decides without the coordinator
            raise Transient("This coordinator does not act now.")
        return self._extender.answer(verb, raw)

    def metrics(self) -> bytes:
        cache = self._cache
        misfits = {table: len(cache.invalid_fields(table)) for table in ("jobs", "gpus")}
        return self._metrics.text(
            cache.jobs().values(), cache.gpus().values(), self._loop.node_loads, misfits, self.shares()["queues"]
        )


def _owned(doc: View, caller: Caller) -> View:
    """Return the document of a job that belongs to whoever calls; `Rejected` where it says otherwise."""
    if doc.get("owner") not in (None, caller.name):
        raise Rejected(f"owner is {caller.name}, who submits the job: leave it out, or write that.", FORBIDDEN)
    if dataset_fields.address(doc) is not None:
        raise Rejected("A shared `reshape up` fetches no data sets: fetch it yourself and give its path as dataset.")
    own = {field: value for field, value in doc.items() if field not in NEVER_OF_CALLERS}
    return {**own, "owner": caller.name, "owner_uid": caller.uid}


def _taken(doc: Doc) -> str:
    return f"The job was not accepted: {intake.name_taken(doc['job_id'])}."
