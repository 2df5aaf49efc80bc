"""Runs the decision loop: read the store, accept new jobs, decide on a frozen snapshot, write the operations.

Runs in one thread, on events and on a timer. It changes only documents; the reconciler carries the operations out. A
decision made on an outdated view fails its compare-and-set and is dropped: the next cycle decides again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from adaptive_scheduler.decision import Decision, End, Hold, Limit, Operation, Start, Stay
from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.deadline_feasibility import alert, diagnose, present_task_s, wait_left_s
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, has_deadline
from coordinator.config import Config
from coordinator.errors import Conflict, Rejected
from coordinator.expected_times import ExpectedTimes
from coordinator.model import fields, progress, resumption
from coordinator.model import states as s
from coordinator.model.events import (
    CpuLimited,
    CpuReleased,
    JobDecided,
    JobRefused,
    JobStalled,
    JobStays,
    JobSubmitted,
    JobWaits,
    JobWarned,
    ProgressLost,
    RecordEvent,
    SavingTold,
    StepsAgain,
)
from coordinator.model.owner_names import owner_of_job
from coordinator.model.pod_fields import QUEUE
from coordinator.model.progress import ObservedJob
from coordinator.model.records import POOL, RECREATE, SHARED, UNLIMITED, JobRecord, Moment, number, show
from coordinator.model.tables import JobChanges, JobRow, NodeRow, QueueRow
from coordinator.ports import Clock, Doc, moment_of
from coordinator.reconcile.observed_state import reshape_method
from coordinator.scheduling import intake
from coordinator.scheduling.binding import BindingContext, bind
from coordinator.scheduling.decision_records import CycleResult, DecisionBasis, decision_doc
from coordinator.scheduling.dependencies import DependencyController
from coordinator.scheduling.garbage_collection import GarbageCollector
from coordinator.scheduling.holds import NUMBERS, Holds
from coordinator.scheduling.image_builds import ImageBuilds
from coordinator.scheduling.pool import GpuPool
from coordinator.scheduling.queue_shares import QueueShares
from coordinator.scheduling.reservation_rows import TABLE as RESERVATIONS
from coordinator.scheduling.reservation_rows import from_rows, with_windows
from coordinator.scheduling.shares_file import SharesFile
from coordinator.scheduling.slaml.slaml_controller import SlamlController
from coordinator.scheduling.snapshot_builder import SnapshotBuilder, SnapshotInputs
from coordinator.scheduling.unlisted_gpus import UnlistedGpus
from coordinator.scheduling.unmarked import UnmarkedDocuments
from coordinator.scheduling.usage_accounts import UsageAccounts
from coordinator.scheduling.why.reasons import WaitingReasons
from coordinator.stores.cache import Cache
from coordinator.telemetry.changed_jobs import Picked
from coordinator.telemetry.ingest import Telemetry
from coordinator.telemetry.node_load import NodeLoad

log = logging.getLogger(__name__)

AFTER_S = 0.001  # what follows a reading on one clock must not lie before it on the other
LIMIT_NEWS = 0.2  # a smaller relative change of a limit is set without an event
LIMITS_KEPT = 16  # decisions on limits that are kept per job for `explain`
TABLES = ("speed_profiles", "overheads", "accuracy_profiles", "nodes", "queues", RESERVATIONS)


Decide = Callable[[ClusterSnapshot, float, Settings], tuple[Decision, ...]]


class DecisionLoop:
    """`tick` is one cycle. `record` gets an event for each change that a cycle has written."""

    def __init__(
        self,
        cache: Cache,
        telemetry: Telemetry,
        clock: Clock,
        config: Config,
        settings: Settings,
        record: RecordEvent,
        nothing_runs: Callable[[str], bool],
    ) -> None:
        """`nothing_runs`: the platform's word that no process of a missing job is left; it also ends those that are."""
        self.cache, self.telemetry, self.clock = cache, telemetry, clock
        self.config, self.settings, self._record = config, settings, record
        self.decide: Decide | None = None  # which an experiment sets in place of the scheduler
        self.inputs, self._snapshots = SnapshotInputs(), SnapshotBuilder(telemetry.give_way)
        self.queues: dict[str, QueueRow] = {}  # Volcano's queues, as the launcher copies them
        self.reservations: list[Doc] = []
        """Rows of GPUs that are kept for users, and of nodes that are drained for a time."""
        self._tables: dict[str, list[Doc]] = {}  # the rows of `TABLES`
        self.tables_number: int | None = None  # of the store's changes, at their last reading
        self._news: set[str] = set()  # jobs that were heard of and not looked at for what their reports show
        self._last_cycle: CycleResult | None = None  # None before the first cycle
        self.reasons = WaitingReasons(settings)
        self._dependencies = DependencyController(cache, clock, record)
        self._image_builds = ImageBuilds(cache, clock, config, record)
        self._slamls = SlamlController(cache, clock, settings)
        self._queued = Picked(lambda job: job.state == s.SUBMITTED)
        self._due = Picked(lambda job: job.doc.get("sla") is not None and job.doc.get("missed_ts") is None)
        self.garbage_collector = GarbageCollector(cache, config.wait_out_s, nothing_runs)
        self._holds = Holds(cache, clock, record)
        self.unmarked = UnmarkedDocuments()
        self._unlisted = UnlistedGpus(cache)
        self.shares_file = SharesFile(config.shares, cache.store)
        self.queue_shares = QueueShares(config.queue)
        self.accounts = UsageAccounts(cache.store, clock, self._count_held)
        self.pool = GpuPool(cache, clock, config, settings)

    def _count_held(self, passed_s: float, wall: float, held: float) -> None:
        self.telemetry.gpu_use.count_held(passed_s, wall, held, len(self.cache.gpus()))

    def tick(self, read: bool = True) -> None:
        """Run one cycle of the loop. Errors of the store pass through.

        Without `read` it decides on the cache alone, which is enough after the coordinator's own changes.
        """
        if read:
            new = self.cache.refresh()  # 1 read
            self._read_tables()
            self._unlisted.retire(self.inputs.nodes)
            self.shares_file.refresh(self.cache.gpus_by_type())
            shares = self.queue_shares.update(self.shares_file.shares, self.queues)
            self.inputs = replace(self.inputs, shares=shares)
            self._admit(new)  # 2 accept, or mark what is wrong
            self._apply_queue_modes()
            self.garbage_collector.collect(self.clock.now())
        self.pool.look(self.queues)
        self._record_progress()
        waiting = [*self._dependencies.sync(read), *self._image_builds.sync()]
        seen: Mapping[str, JobRecord] = self.cache.jobs()
        self._drop_memory_except(seen)
        self._news |= self.telemetry.follow(seen)
        began = self.clock.now()
        snapshot = self._build_snapshot(seen, self.telemetry.observed, began, self._snapshots)  # 3 freeze
        snapshot = self.accounts.look(snapshot)
        if written := self._warn_infeasible(seen, snapshot):
            seen = {**seen, **written}
        if written := self._record_missed_deadlines(seen, snapshot):
            seen = {**seen, **written}
        decisions = (self.decide or decide)(snapshot, began, self.settings)  # 4
        took = self.clock.now() - began
        self._last_cycle = CycleResult(snapshot, decisions, began, self.settings)
        held = {decision.job for decision in decisions}
        decisions = self.reasons.told(snapshot, decisions, began)
        decisions = self.pool.told(snapshot, decisions)
        basis = DecisionBasis(seen, snapshot, took)
        for decision in (*waiting, *decisions):  # 5 write the reason, then the operation
            try:
                self._apply(decision, basis)
            except Conflict as lost:
                log.info("decision on job %s not carried out: %s", decision.job, lost, extra={"job": decision.job})
        self._holds.withdraw(self.cache.jobs(), snapshot, held)
        self._slamls.sync(snapshot, read)  # 6 jobs and status of Slamls
        self.accounts.decided(snapshot, decisions)
        self.pool.decide(snapshot, self.inputs.nodes)

    def read(self) -> None:
        """Read the store and decide nothing, so that it is shown what is there."""
        self.cache.refresh()
        self._read_tables()

    def begin(self) -> None:
        """Begin to act: drop per-job memory, which is outdated if another coordinator has acted."""
        self._holds.begin()
        self.accounts.begin()
        self.garbage_collector.begin()
        self.pool.begin()

    def _drop_memory_except(self, jobs: Mapping[str, JobRecord]) -> None:
        """Drop the memory of all jobs but these."""
        self.telemetry.keep_only(jobs)
        self._holds.keep_only(jobs.keys())

    @property
    def node_loads(self) -> dict[str, NodeLoad]:
        """The load of each node at the last cycle."""
        return {} if self._last_cycle is None else self._last_cycle.node_loads

    def node_load_of(self, node: str) -> NodeLoad | None:
        """The load of a node at the last cycle; None if unknown."""
        return self.node_loads.get(node)

    @property
    def last_snapshot(self) -> ClusterSnapshot | None:
        """Return the snapshot that the last cycle decided on; None before the first."""
        return None if self._last_cycle is None else self._last_cycle.snapshot

    def present(self) -> tuple[ClusterSnapshot, float]:
        """A snapshot of this moment and its time, for callers in other threads."""
        now = self.clock.now()
        jobs = self.cache.jobs()
        seen = {job.id: self.telemetry.seen(job) for job in jobs.values()}
        return self._build_snapshot(jobs, seen, now, SnapshotBuilder()), now

    def expected_times(self) -> tuple[dict[str, ExpectedTimes], float]:
        """(Expected starts and ends by job, age): the times count from `age` seconds ago."""
        last_cycle = self._last_cycle
        return ({}, 0.0) if last_cycle is None else (last_cycle.expected_times, self.clock.now() - last_cycle.at)

    def _reset_job_memory(self, name: str) -> None:
        """Drop memory under the id of a new job, which belongs to an ended job of that id."""
        self._holds.forget_job(name)
        self.telemetry.forget_job(name)

    def _admit(self, new: list[JobRecord]) -> None:
        taken = set(self.cache.jobs()) if new else set[str]()
        with_uid = self.cache.jobs().values() if any(job.uid for job in new) else ()
        ours = {(str(job.key), job.uid) for job in with_uid}
        booked = self.garbage_collector.orphaned_jobs() if new else set[str]()
        self.unmarked.keep_only(new)
        for job in sorted(new, key=lambda j: str(j.key)):
            if (str(job.key), job.uid) in ours:  # somebody has emptied `closed` of a job that was let in
                continue
            found = intake.problems(job.doc, self.builds_images)
            if job.id in taken or (not found and self._name_in_use(job)):
                found = [intake.name_taken(job.raw_id)]
            if not found and (why := self._inadmissible(job)):
                found = [why]
            if found and found == job.doc.get("problems"):
                continue
            if not found and job.id in booked:  # an earlier job of this id may still train
                continue
            changes = intake.refusal_fields(job.doc, found, self.clock.wall()) if found else self._accepted(job)
            try:
                record = self.cache.admit(job, changes)
            except (Conflict, Rejected) as refused:
                if why := self.unmarked.told(job, refused):
                    log.warning("document %s: %s", show(job.key), why)
                    self._record(job, JobRefused([why]))
                continue
            if not found:
                taken |= {job.id}
                self._reset_job_memory(job.id)
            self._record(record, JobRefused(found) if found else JobSubmitted(found))

    def _inadmissible(self, job: JobRecord) -> str:
        """Return why this cluster cannot accept a valid document, such as checkpoints that a reshape loses."""
        lasting = self.config.checkpoints_last or job.doc.get("checkpoint_claim")
        if (
            why := self.unknown_type(job.doc)
            or self.refused_by_shares(job.doc)
            or self.refused_without_volcano(job.doc)
        ):
            return why
        if job.doc.get("notify") and not self.config.notify_jobs:
            return intake.NO_NOTICES
        if job.gpus_per_pod:
            return intake.NO_PODS if not self.config.many_pods else "" if lasting else intake.GANG_LOSES
        loses = not lasting and self._devices(job) == RECREATE and len(intake.allowed_counts(job.doc)) > 1
        return intake.LOSES if loses else ""

    @property
    def builds_images(self) -> bool:
        """Whether `reshape builder` builds the images of records. Not on one machine, where no image is used."""
        return bool(self.config.image_repository) and self.config.many_pods

    def unknown_type(self, doc: JobRow) -> str:
        """Return why its GPU type is unknown; empty if it is known, or before profiles were read."""
        here = (gpu.gpu_type for gpu in self.cache.gpus().values()), (kind for _, kind in self.profiles.speeds)
        return fields.unknown_gpu_type(doc.get("gpu_type"), *here) if self.profiles.speeds else ""

    def refused_without_volcano(self, doc: JobRow) -> str:
        """Return why a job of several pods cannot be accepted; empty if this cluster has Volcano, or it is none."""
        return intake.NO_GANGS if doc.get("gpus_per_pod") and not self.config.volcano else ""

    def refused_by_shares(self, doc: JobRow) -> str:
        """Return why its owner may not submit to its queue; empty if that is allowed."""
        shares = self.queue_shares.shares
        (queue, user) = self._named(doc)
        if why := shares.refusal(queue, user):
            return why
        name = shares.queue_of(queue, user)
        most = shares.queue(name).max_jobs
        if most is None:
            return ""
        named = (self._named(job.doc) for job in self.cache.jobs().values() if job.state not in s.ENDED)
        count = sum(other[1] == user and shares.queue_of(*other) == name for other in named)
        if count < most:
            return ""
        return f"user {user!r} has {count} unfinished jobs in queue {name}, and shares.yaml lets one user have {most}"

    def _named(self, doc: JobRow) -> tuple[str, str]:
        """Return the queue that a job document names, empty where it names none, and whose the job is."""
        return str(doc.get("queue") or ""), owner_of_job(doc, self.config.default_owner)

    def _accepted(self, job: JobRecord) -> JobChanges:
        at = moment_of(self.clock)
        fields = intake.acceptance_fields(job.doc, uuid.uuid4().hex, at.wall, self._devices(job))
        return fields | {"submit_mark": at.mark(fields["submit_ts"])}

    def _devices(self, job: JobRecord) -> str:
        """The device mode of its queue: the GPUs that its launches see."""
        queue = self.queues.get(str(job.doc.get("queue") or QUEUE), {})
        return next((mode for mode in (RECREATE, POOL) if queue.get("devices") == mode), SHARED)

    def _apply_queue_modes(self) -> None:
        """Copy a changed device mode of a queue to its waiting jobs that have no launch; others keep theirs."""
        for job in self._queued.from_jobs(self.cache.jobs()).values():
            at_rest = job.launch == 0 or job.doc.get("down") == job.launch
            mode = self._devices(job)
            if job.operation is None and at_rest and (job.doc.get("devices") or SHARED) != mode:
                with suppress(Conflict):
                    self.cache.write_job(job, {"devices": mode}, "devices")

    def _name_in_use(self, job: JobRecord) -> bool:
        """True if an open job has this id, or had when the document was refused: that refusal is final."""
        if intake.name_taken(job.raw_id) in (job.doc.get("problems") or ()):
            return True
        twins = self.cache.store.list("jobs", {"job_id": job.raw_id})
        return any(twin["_id"] != job.key and twin.get("uid") and not twin.get("closed") for twin in twins)

    def _read_tables(self) -> None:
        self.telemetry.estimator.take_foreign()
        number, changed = self.cache.store.changed(TABLES, self.tables_number)
        if changed is None or changed:
            self._read_changed_tables(TABLES if changed is None else sorted({table for table, _ in changed}))
        self.tables_number = number

    def _read_changed_tables(self, changed: Sequence[str]) -> None:
        self._tables |= {table: self.cache.store.list(table) for table in changed}
        profiles = self.telemetry.profiles = Profiles.from_rows(*(self._tables[table] for table in TABLES[:3]))
        nodes = {str(doc["_id"]): doc for doc in self._tables["nodes"]}
        self.queues = {str(doc["_id"]): doc for doc in self._tables["queues"]}
        self.reservations = self._tables[RESERVATIONS]
        known, config = self.telemetry.estimator.observations(), self.config
        self.inputs = SnapshotInputs(
            profiles,
            known,
            nodes,
            config.checkpoints_last,
            config.many_pods,
            config.grace_s,
            self.queue_shares.shares,
            config.default_owner,
        )

    @property
    def profiles(self) -> Profiles:
        return self.inputs.profiles

    def _record_progress(self) -> None:
        """Measure the growth of jobs where due, and write changed progress and evidence into their documents."""
        jobs = self.cache.jobs()
        at = moment_of(self.clock)
        self._news |= self.telemetry.follow(jobs)
        grown = self.telemetry.progress.look(jobs, self.telemetry.reports.newest_of_job, at, self.profiles)
        for job_id in sorted(grown.keys() | (self._news & jobs.keys())):
            self.telemetry.give_way()
            changes = grown.get(job_id, {}) | self._shown(jobs[job_id])
            if changes:
                with suppress(Conflict):
                    written = self.cache.write_job(jobs[job_id], changes, "progress")
                    if "withdrawn" in changes:
                        self._record(written, SavingTold(changes["withdrawn"] or "it saves again"))
                    if "lost" in changes:
                        self._record(written, ProgressLost(resumption.describe_loss(changes["lost"])))
                    if "stalled" in changes:
                        why = resumption.describe_standstill(written, at)
                        self._record(written, JobStalled(why) if why else StepsAgain())
        self._news.clear()

    def _shown(self, job: JobRecord) -> JobChanges:
        """Fields to write if its newest reports show that it resumes or has a lease, that a stop has cost work, or that
        it stands still or goes on."""
        beat = (reports := self.telemetry.reports).newest_of_job(job) if job.state in s.LAUNCHED else None
        if beat is None:
            return {}
        steps = self.telemetry.steps.changes(job, moment_of(self.clock))
        return resumption.newly_known(job, reports.pods(job), beat) | steps

    def _build_snapshot(
        self, jobs: Mapping[str, JobRecord], seen: Mapping[str, ObservedJob], now: float, builder: SnapshotBuilder
    ) -> ClusterSnapshot:
        # At once: the builder works out anew what depends on how the clocks differ.
        at = Moment(now, self.clock.wall(), self.clock.boot_id())
        known = replace(self.inputs, nodes=self.nodes_now(), observations=self.telemetry.estimator.observations())
        snapshot = builder.build(jobs, self.cache.gpus(), seen, known, at)
        kept = self.accounts
        return snapshot.then(used=kept.use, spent=kept.spent, reservations=from_rows(self.reservations, at))

    def nodes_now(self) -> Mapping[str, NodeRow]:
        """Return the documents of nodes, with what their agents report, drained where that is planned for now."""
        heard = self.telemetry.nodes.as_heard(self.inputs.nodes)
        return with_windows(heard, self.reservations, self.clock.wall()) if self.reservations else heard

    def _warn_infeasible(self, seen: Mapping[str, JobRecord], snapshot: ClusterSnapshot) -> dict[str, JobRecord]:
        """Warn once about a new job whose deadline cannot be met, with one that could (Slaml)."""
        new = [job for job in snapshot.where(has_deadline) if seen[job.id].doc.get("warnings") is None]
        written: dict[str, JobRecord] = {}
        for job in new if "deadline" in self.settings.systems else ():
            why = alert(job, diagnose(job, snapshot, self.settings))
            with suppress(Conflict):
                written[job.id] = self.cache.write_job(seen[job.id], {"warnings": [why] if why else []}, "warn")
                if why:
                    self._record(written[job.id], JobWarned(why))
        return written

    def _record_missed_deadlines(
        self, seen: Mapping[str, JobRecord], snapshot: ClusterSnapshot
    ) -> dict[str, JobRecord]:
        """Record once that the deadline of a job has passed, by a clock that does not jump."""
        now = self.clock.now()
        wall = self.clock.wall()
        written = dict[str, JobRecord]()
        submitted = {job.id: job.submit_s for job in snapshot.where(has_deadline)}
        for job in [job for job in self._due.from_jobs(seen).values() if job.id in submitted]:
            if missed := progress.missed_event(job, job.submit_ts + now - submitted[job.id]):
                with suppress(Conflict):
                    written[job.id] = self.cache.write_job(job, {"missed_ts": wall}, "missed")
                    self._record(written[job.id], missed)
        return written

    # carrying a decision into the store

    def _apply(self, decision: Decision, basis: DecisionBasis) -> None:
        job = basis.seen[decision.job]
        match decision:
            case Hold():
                self._record_hold(job, decision, basis)
            case Stay():
                self._record_stay(job, decision, basis)
            case Limit():
                self._apply_limit(job, decision, basis)
            case End():
                self._end(job, decision, basis)
            case _:
                self._start_operation(job, decision, basis)

    def _start_operation(self, job: JobRecord, decision: Operation, basis: DecisionBasis) -> None:
        """Write the reason, then the operation."""
        self._holds.forget_job(job.id)
        cache, how = self.cache, reshape_method(job, self.config)
        context = BindingContext(basis.seen, basis.snapshot.node, cache.jobs(), cache.gpus(), self.clock.wall(), how)
        changes = bind(decision, context)
        if isinstance(decision, Start):
            changes |= self._expected_times(job, basis.snapshot)
        decision_id = self._store_decision(job, decision, basis)
        changes["reshape"]["decision"] = decision_id
        record = self.cache.write_job(job, {**changes, "message": decision.explanation.sentence}, "intent")
        self._record(record, JobDecided(decision_id, basis.took_s))

    def _expected_times(self, job: JobRecord, snapshot: ClusterSnapshot) -> JobChanges:
        """Expected total training time and waiting time left, as known at the start (Slaml).

        A job that takes longer is overdue. Of a Slaml this job trains only the present task.
        """
        if "deadline" not in self.settings.systems:
            return {"expected_s": None, "sla_waiting_s": None}
        seen, found = snapshot.job[job.id], diagnose(snapshot.job[job.id], snapshot, self.settings)
        left = present_task_s(snapshot, seen, self.settings) if job.doc.get("slaml") else found.te_s
        wait_s = wait_left_s(seen, found, self.clock.now())
        return {"expected_s": None if left is None else seen.task_s + left, "sla_waiting_s": wait_s}

    def _end(self, job: JobRecord, decision: End, basis: DecisionBasis) -> None:
        """Have the reconciler end a job whose time is up; as its row says so, that outlives this coordinator."""
        self._holds.forget_job(job.id)
        decision_id = self._store_decision(job, decision, basis)
        sentence = decision.explanation.sentence
        record = self.cache.write_job(job, {"cancel": True, "timed_out": True, "message": sentence}, "time limit")
        self._record(record, JobDecided(decision_id, basis.took_s))

    def _record_stay(self, job: JobRecord, decision: Stay, basis: DecisionBasis) -> None:
        """Record that a requested move is refused; the decision says if that used up the job's one move (5.5)."""
        wall, sentence = self.clock.wall() + AFTER_S, decision.explanation.sentence
        before = self.cache.store.get("decisions", f"{job.id}-stays") or {}
        self._store_decision(job, decision, basis)
        spent: JobChanges = {"migrated_ts": wall} if decision.spends_move else {}
        record = self.cache.write_job(job, {"move_refused_ts": wall, **spent}, "stay")
        if NUMBERS.sub("#", str(before.get("sentence"))) != NUMBERS.sub("#", sentence):  # it may ask at every interval
            self._record(record, JobStays(sentence))

    def _apply_limit(self, job: JobRecord, decision: Limit, basis: DecisionBasis) -> None:
        """Write a CPU limit; needs no operation: the sidecar gets it with its next heartbeat, or the launcher reads it.

        An unchanged limit is only renewed.
        """
        at = moment_of(self.clock)
        cores = decision.cores
        until: JobChanges = UNLIMITED
        if cores is not None:
            until_ts = at.wall + decision.lasts_s
            mark = at.mark(until_ts)
            until = {"cpu_limit": cores, "limit_ts": until_ts, "limit_mark": mark, "limit_by": decision.by}
        if cores == job.limit_left(at)[0]:
            self.cache.write_job(job, until, "limit")
            return
        known = number(job.doc.get("limit_told")) if job.limit_left(at)[0] else None
        news = cores is None or known is None or abs(cores - known) >= LIMIT_NEWS * known  # measurements are noisy
        count = job.limits_told + news
        announced: JobChanges = {"limits_told": count, **({} if cores is None or not news else {"limit_told": cores})}
        decision_id = self._store_decision(job, decision, basis, f"limit-{count % LIMITS_KEPT}")
        record = self.cache.write_job(job, {**until, **announced, "limits": job.limits + 1}, "limit")
        if news:
            kind = CpuReleased if cores is None else CpuLimited
            self._record(record, kind(decision_id, cores, decision.explanation.sentence))

    def _record_hold(self, job: JobRecord, decision: Hold, basis: DecisionBasis) -> None:
        sentence, request = decision.explanation.sentence, _operator_request(job, decision)
        if not self._holds.is_news(job, decision, request):
            return
        self._store_decision(job, decision, basis)
        record = self.cache.write_job(job, {"message": sentence}, "hold")
        self._holds.told(job, decision, request)
        self._record(record, JobWaits(sentence))

    def _store_decision(self, job: JobRecord, decision: Decision, basis: DecisionBasis, name: str = "") -> str:
        """Store the decision, its reason and the rejected candidates before it is carried out; returns its id."""
        # Only the last reason to wait or to stay is kept per job.
        lasting = {Hold: "waits", Stay: "stays"}.get(type(decision))
        name = name or lasting or f"v{job.doc.get('version')}"
        decision_id = _operator_request(job, decision) or f"{job.id}-{name}"
        took_s = basis.took_s if isinstance(decision, Operation) else 0.0
        doc = decision_doc(decision_id, job, decision, self.clock.wall(), took_s, basis)
        self.cache.store.put("decisions", doc)
        return decision_id


def _operator_request(job: JobRecord, decision: Decision) -> str:
    """The id of the operator's request that a decision answers; empty if there is none."""
    return str(job.doc.get("wish_id") or "") if decision.explanation.algorithm == "operator" else ""
