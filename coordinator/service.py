"""Composes the coordinator from its parts and runs its threads.

Threads: one for the decision loop, several for the reconciler, one that writes batches, one that watches the store, one
that renews the term, one that measures resource use, one that forecasts, one that tells people outside of ended jobs,
one that removes what is too old. The operations for callers are in `coordinator.api.services`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from adaptive_scheduler.settings import Settings
from coordinator.adapters.notice_sender import send
from coordinator.adapters.pod_access import AgentCalls
from coordinator.api.access import Access
from coordinator.api.coordinator_status import CoordinatorStatus
from coordinator.api.decided import Decided
from coordinator.api.ended_jobs import EndedJobs
from coordinator.api.fleet import Fleet
from coordinator.api.history import History
from coordinator.api.job_output import JobOutput
from coordinator.api.job_reads import JobReads
from coordinator.api.job_views import JobViews
from coordinator.api.node_drains import NodeDrains
from coordinator.api.operator_requests import OperatorRequests
from coordinator.api.profile_tables import ProfileTables
from coordinator.api.queue_rights import QueueRights
from coordinator.api.reservations import Reservations
from coordinator.api.services import Services
from coordinator.api.signed_messages import SignedMessages
from coordinator.api.simulations import Simulations
from coordinator.api.slaml_requests import SlamlRequests
from coordinator.api.submissions import Submissions
from coordinator.api.volcano_extender import VolcanoExtender
from coordinator.config import CLOCK_DRIFT, Config
from coordinator.errors import Conflict, Fatal, Rejected, ReshapeError, Transient
from coordinator.events.event_log import EventLog
from coordinator.events.event_recorder import EventRecorder
from coordinator.events.metrics import Metrics
from coordinator.events.notifier import Notifier
from coordinator.events.traces import ReshapeTraces
from coordinator.forecasts.forecaster import Forecaster
from coordinator.model import states as s
from coordinator.model.records import JobRecord, takes_work
from coordinator.model.tables import JobRow, plain
from coordinator.ports import Clock, Doc, LivingLaunch, Measurements, Platform, Sidecars, Store
from coordinator.reconcile.reconciler import Reconciler
from coordinator.recovery.awaited_trainings import AwaitedTrainings
from coordinator.recovery.recovery import recover, restore
from coordinator.scheduling.loop import DecisionLoop
from coordinator.scheduling.pool import LOOK_S as POOL_LOOK_S
from coordinator.stores import retention
from coordinator.stores.cache import Cache
from coordinator.stores.elector import Elector
from coordinator.telemetry.ingest import Telemetry
from coordinator.telemetry.inventory_writer import InventoryWriter
from coordinator.workqueue import WorkQueue
from sidecar.startup import log_format

log = logging.getLogger(__name__)

RECONCILERS = 4
STARTING = "The coordinator has just started and has not read its store yet."  # until its first cycle is over
FLUSH_S = 2.0  # events are shown at once; a kill loses those of so long from the history
MIN_PAUSE_S = 0.05  # least pause between two cycles that only due readings call for
STUCK_TERMS = 8  # terms that one cycle of the loop may take before the term is given up
PRUNE_S = 3600.0  # between two removals of what is too old; the first one follows some seconds after the start
FIRST_PRUNE_S = 20.0
CLOCK_LOOK_S = 10.0  # between two looks whether the wall clock was set
LOOK_S = 60.0  # at most between two looks at a job that waits for nothing
LEAVING_S = 3.0  # that storing how the trainings went may delay `stop`
WATCH_S = 1.0  # longest wait for a change of the store, which delays `stop`


class Coordinator:
    """`start` begins its threads, `stop` ends them; jobs go on meanwhile (they are not its children)."""

    def __init__(
        self,
        store: Store,
        sidecars: Sidecars,
        platform: Platform,
        clock: Clock,
        config: Config,
        settings: Settings,
        master_key: bytes,
        elector: Elector,
        version: str,
        failpoint: Callable[[str], None] = lambda name: None,
        agent_key: bytes = b"",
        measurements: Measurements | None = None,
        traces: ReshapeTraces | None = None,
        launcher_tells: bool = False,
        pods_of: Callable[[JobRow], Sequence[Doc | None]] | None = None,
    ) -> None:
        """`agent_key`: of node agents, empty without; `measurements`, `traces`: Prometheus, OpenTelemetry, if any.

        `launcher_tells`: whether a launcher on a cluster tells of which trainings the store has lost the records.
        `pods_of`: the pods of a launch by member; None where launches are no pods.
        """
        self.store = store
        self.platform = platform
        self.clock = clock
        self.config = config
        self.master_key = master_key
        self.elector = elector
        self.metrics = Metrics(version)
        self.queue = WorkQueue(clock.now, lambda job_id: self.reconciler.overdue_s(job_id))
        self.cache = Cache(store, elector.continuous)
        self.telemetry = Telemetry(
            store, self.cache, clock, config.heartbeat_s, settings, measurements, config.no_step_s
        )
        self.event_log = EventLog(store, clock)
        self.wake = threading.Event()
        self.recorder = EventRecorder(
            self.event_log, self.telemetry, self.metrics, clock, self.queue, self.wake, store, traces
        )
        record = self.recorder.record
        self.notifier = Notifier(store, self.cache, clock, config, record, send)
        self.recorder.notice = self.notifier.heard
        self.loop = DecisionLoop(self.cache, self.telemetry, clock, config, settings, record, platform.nothing_runs)
        self.recorder.count_lost = self.loop.accounts.count_lost
        access = None if pods_of is None else AgentCalls(pods_of, self.telemetry.nodes.permits_at, agent_key)
        self.reconciler = Reconciler(
            self.cache,
            self.telemetry.reports,
            sidecars,
            platform,
            clock,
            config,
            master_key,
            record,
            failpoint,
            self._launch_doc,
            self._node_unavailable,
            self.telemetry.progress.last_course,
            access,
        )
        self.forecaster = Forecaster(store, self.loop, self.cache, self.telemetry, clock, self.event_log, self.metrics)
        self.awaited = AwaitedTrainings(
            store,
            self.cache,
            self.telemetry.reports,
            clock,
            config.lease_s,
            launcher_tells,
            self.loop.read,
            self.recover,
        )
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._first: Callable[[], None] = lambda: None  # what the acting one writes before all others
        self.stale = threading.Event()  # another process wrote to the store
        self.stale.set()
        self.inventory = InventoryWriter(store, self.cache, self.telemetry, self.stale.set, self.wake.set)
        self._read_at = 0.0  # when the store was read last
        self._cycle_s = 0.0  # that the last cycle of the loop took
        self._cycle_began_at = clock.now()
        self.succeeded = threading.Event()  # another coordinator acts now
        self.trouble = STARTING  # empty after a cycle without an error
        self.services = self._make_services(sidecars, agent_key)

    def _make_services(self, sidecars: Sidecars, agent_key: bytes) -> Services:
        """Make what the HTTP handlers call."""
        store = self.store
        cache = self.cache
        clock = self.clock
        loop = self.loop
        ended = EndedJobs(store, self.event_log, clock)
        access = Access(cache, ended, self.event_log, loop, self.config)
        decided = Decided(store, cache, self.config.keep)
        job_views = JobViews(cache, self.telemetry, loop, self.forecaster, clock, self.reconciler.unanswered)
        operator = OperatorRequests(
            access,
            cache,
            sidecars,
            self.telemetry,
            clock,
            self.config,
            self.master_key,
            job_views,
            self.look,
            self._notify,
            lambda: loop.queue_shares.shares,
        )
        reservations = Reservations(access, store, loop, clock, self.look)
        rights = QueueRights(access, cache, loop, clock, self.look)
        fleet = Fleet(access, cache, self.telemetry, loop, self.forecaster, reservations.users_of_idle_gpus)
        status = CoordinatorStatus(
            self.elector, cache, loop, self.metrics, clock, rights.shares, fleet.gpus, lambda: self.trouble
        )
        messages = SignedMessages(
            cache,
            self.telemetry,
            self.metrics,
            clock,
            self.config,
            self.master_key,
            agent_key,
            status.acts,
            self.succeeded.is_set,
            self._notify,
            loop.node_load_of,
            operator.request,
        )
        return Services(
            submissions=Submissions(access, store, cache, loop, job_views, self.look),
            operator=operator,
            drains=NodeDrains(access, store, cache, reservations, self.look),
            reservations=reservations,
            slamls=SlamlRequests(access, store, clock, self.config.many_pods, self.look),
            jobs=JobReads(access, store, cache, clock, loop, self.telemetry.progress, job_views, ended, decided),
            output=JobOutput(access, self.platform),
            fleet=fleet,
            history=History(access, self.event_log, decided),
            rights=rights,
            profiles=ProfileTables(access, store, self.telemetry.estimator, self.look),
            simulations=Simulations(access, cache, clock, loop, self.forecaster, self.event_log, ended),
            status=status,
            messages=messages,
            extender=VolcanoExtender(cache.job, lambda: loop.queues, cache.node_of),
        )

    def _launch_doc(self, job: JobRecord) -> JobRow:
        """The job document for the platform; on emulated GPUs with the speed to emulate."""
        gpu = self.cache.first_gpu(job)
        if gpu is None or not gpu.doc.get("emulated"):
            return job.doc
        profiles = self.telemetry.profiles
        speeds = {n: profiles.speed(job.job_type, gpu.gpu_type, n) for n in job.optional}
        return {**job.doc, "emulated_speed": {str(n): speed.seconds for n, speed in speeds.items() if speed}}

    def _node_unavailable(self, node: str | None) -> bool:
        """True if a node's agent is silent, or the node takes no new pods."""
        doc = self.loop.inputs.nodes.get(str(node), {})
        silent = bool(doc.get("agent")) and self.telemetry.nodes.silent(str(node))
        return silent or not takes_work(doc)

    def look(self) -> None:
        """Read the store now, not at the next poll, because it was written to."""
        self.stale.set()
        self.wake.set()

    def _notify(self, job_id: str | None) -> None:
        """Wake the decision loop, and the reconciler if a job is given."""
        if job_id is not None:
            self.queue.add(job_id)
        self.wake.set()

    # threads

    def start(self, first: Callable[[], None] = lambda: None) -> None:
        """Begin to act. `Rejected` if another coordinator acts on this store.

        `first` is called once this coordinator leads, so it may write what only the acting one may.
        """
        self._take_the_term()
        self._first = first
        self.recover()
        bodies = [self._loop, self._renewer, self._flusher, self._watcher, self._profiler, self._pruner]
        bodies += [self._forecasts, self._notices, *[self._consumer] * RECONCILERS]
        for body in bodies:
            thread = threading.Thread(target=body, name=body.__name__.strip("_"), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _take_the_term(self) -> None:
        """Wait for the term: a former leader that crashed is replaced once its term has expired."""
        patience_s = self.config.term_s * (1 + CLOCK_DRIFT) + 1
        began, warned = self.clock.now(), False
        while not self.elector.try_to_lead():
            holder = self.elector.holder()
            if self.clock.now() - began > patience_s:
                raise Rejected(f"Another coordinator ({holder}) acts on this store; stop it first.")
            if not warned:
                log.warning("Another coordinator (%s) acted on this store; waiting up to %.0f s.", holder, patience_s)
                warned = True
            self._stopping.wait(0.2)
        self._begin()

    def recover(self) -> None:
        """Bring the store in line with what runs, and with what is in memory if it was emptied or is an older one."""
        jobs = self.cache.jobs()
        remembered = {
            "jobs": [*(plain(job.doc) for job in jobs.values()), *self.cache.set_aside_rows()],
            "gpus": [plain(gpu.doc) for gpu in self.cache.gpus().values()],
            "nodes": [plain(node) for node in self.loop.inputs.nodes.values()],
            "queues": [plain(queue) for queue in self.loop.queues.values()],
            "reservations": list(self.loop.reservations),
        }
        heard = [
            LivingLaunch(job.id, job.uid, beat.launch, beat.shim)
            for job in (*jobs.values(), *self.cache.set_aside().values())
            if (beat := self.telemetry.reports.newest_of_job(job)) is not None and not self.reconciler.is_over(job)
        ]
        restore(self.store, remembered)
        self._first()
        recover(self.store, self.platform, self.clock.wall(), remembered["jobs"], heard)
        self.elector.rewound, self.cache.read_number, self.loop.tables_number = False, None, None  # read it all
        self._queue_all()
        self.stale.set()

    def _begin(self) -> None:
        """Drop observations, which are outdated if another coordinator has acted meanwhile."""
        self.telemetry.begin()
        self.loop.begin()
        self._queue_all()
        self.stale.set()

    def stop(self) -> None:
        """Finish the work in progress and let a successor begin. Stops no training."""
        self._stopping.set()
        self.wake.set()
        self.queue.close()
        self.forecaster.wake()
        for thread in self._threads:
            thread.join(timeout=10)
        try:
            self._flush()
            if self.elector.leads:
                self._keep_courses()
            if self.elector.leads and not self.elector.continuous():
                self.recover()  # what is in memory only would be lost
            self.elector.resign()
        except ReshapeError as error:
            log.warning("could not tidy up the store on leaving: %s", error)
        self.recorder.close()  # last: its collector may hang

    def _keep_courses(self) -> None:
        """Store how the trainings went since that was stored last, as far as it is done in `LEAVING_S`."""
        until = self.clock.now() + LEAVING_S
        for job in self.cache.jobs().values():
            if self.clock.now() > until:
                return
            if changes := self.telemetry.progress.last_course(job):
                with suppress(Conflict):
                    self.cache.write_job(job, changes, "course")

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self.wake.clear()
            self._turn()
            self.wake.wait(self._pause_s())

    def _pause_s(self) -> float:
        """Seconds until the next cycle unless woken; a store that does not answer is polled no faster."""
        longest_s = min(self.config.poll_s, self.config.term_s / 3)
        if self.loop.pool.active:  # others may wait for GPUs
            longest_s = min(longest_s, POOL_LOOK_S)
        if self.trouble:
            return longest_s
        rest_s = max(MIN_PAUSE_S, self._cycle_s)  # with a core for turns alone, half of it is left to heartbeats
        return min(longest_s, max(rest_s, self.telemetry.progress.next_s(self.clock.now())))

    def _renewer(self) -> None:
        """Renew the term while a cycle of the loop takes long, but not for one that hangs."""
        while not self._stopping.wait(self.config.term_s / 5):
            if self.elector.leads and self.clock.now() - self._cycle_began_at < STUCK_TERMS * self.config.term_s:
                with suppress(ReshapeError):
                    self.elector.try_to_lead()

    def _turn(self) -> None:
        """Run one cycle of the decision loop; an error is shown by `/healthz` and retried."""
        began, tries = self.clock.now(), self.elector.rewound
        self._cycle_began_at = began
        try:
            led = self.elector.leads
            if not self.elector.try_to_lead():
                self.succeeded.set()
                self.trouble = f"Another coordinator ({self.elector.holder()}) acts on this store."
                return
            if not led:
                self._begin()
            if self.elector.rewound:
                log.warning("The store was emptied or replaced by an older one; what is known is written back.")
                self.recover()
            self.inventory.register_nodes()
            self.inventory.mark_faulty_gpus()
            self.inventory.forget_nodes(self.loop.inputs.nodes)
            read = self.stale.is_set() or began - self._read_at >= self.config.poll_s
            if read:
                self.stale.clear()
                self._read_at = began
                knows = self.awaited.all_are_known()
            else:
                knows = not self.awaited.waits
            if knows:
                self.loop.tick(read)
            if read and knows:
                self.telemetry.nodes.stored(self.loop.inputs.nodes)
            if self.trouble not in ("", STARTING):
                log.info("The coordinator works again; before: %s", self.trouble)
            self.trouble = ""
        except Transient as error:
            self.stale.set()
            if self.elector.rewound and not tries:  # else recovering failed: a store that takes no write is not pressed
                self.wake.set()  # recover at once
            trouble = f"The store does not answer: {error}"
            if trouble != self.trouble:  # on a full disk each line in the log may be the last one
                log.warning("%s", trouble)
            self.trouble = trouble
        except Exception as error:  # an error in one cycle must not end the coordinator
            self.trouble = f"The decision loop failed: {error}"
            log.exception("the decision loop failed")
        self._cycle_s = self.clock.now() - began
        self.metrics.turned(self._cycle_s)
        self._queue_changed()

    def _queue_all(self) -> None:
        """Have the reconciler look at each job, since another coordinator may have acted."""
        for job_id in self.cache.jobs():
            self.queue.add(job_id)

    def _queue_changed(self) -> None:
        """Have the reconciler look at each job that has changed, or whose operation waits for others.

        All other jobs are looked at when their sidecar has news, or has been silent for too long.
        """
        for job_id in self.cache.take_changed():
            self.queue.add(job_id)
        for job in self.cache.jobs().values():
            if job.operation is not None or job.cancel or job.state in s.ENDED:
                self.queue.add(job.id)

    def _consumer(self) -> None:
        while (job_id := self.queue.next()) is not None:
            try:
                with log_format.about(job=job_id):
                    self._reconcile(job_id)
            finally:
                self.queue.done(job_id)
            self.telemetry.give_way()

    def _reconcile(self, job_id: str) -> None:
        if not self.elector.leads or self.elector.rewound or self.awaited.waits:  # once mended, all are looked at
            return
        try:
            wait = self.reconciler.reconcile(job_id)
            self.queue.forgive(job_id)
            self._look_again(job_id, wait.seconds)
        except Conflict:
            self.queue.add(job_id, 0.05)
        except Transient as error:
            log.info("job %s: %s; again in %.1f s", job_id, error, self.queue.retry(job_id))
        except Fatal as error:
            self._show(job_id, str(error))
            self.queue.retry(job_id)
        except Exception as error:  # an error in one job must not end the others
            log.exception("job %s: %s", job_id, error)
            self.queue.retry(job_id)

    def _look_again(self, job_id: str, wait_s: float | None) -> None:
        """Have the reconciler look again in `wait_s` seconds; None: once its sidecar is silent, but now and then."""
        if wait_s is not None:
            self.queue.add(job_id, wait_s)
        elif self.cache.job(job_id) is not None:
            self.queue.watch(job_id, max(self.reconciler.overdue_s(job_id), self.config.poll_s), LOOK_S)

    def _show(self, job_id: str, trouble: str) -> None:
        """Show users an error that retries will not fix."""
        log.error("job %s: %s", job_id, trouble)
        if (job := self.cache.job(job_id)) is not None and job.doc.get("message") != trouble:
            with suppress(ReshapeError):
                self.cache.write_job(job, {"message": trouble}, "trouble")

    def _flusher(self) -> None:
        beats_at = 0.0
        pause_s = FLUSH_S
        trouble = ""
        while not self._stopping.wait(pause_s):
            pause_s = FLUSH_S
            try:
                pause_s = self.event_log.flush_once_old(FLUSH_S)
                if self.clock.now() - beats_at >= self.config.heartbeat_s:
                    beats_at = self.clock.now()
                    self.telemetry.flush(self.elector.leads)
                if self.elector.leads:
                    self.loop.accounts.flush_if_due()
                    self.telemetry.gpu_use.flush_if_due()
                trouble = ""
            except ReshapeError as error:
                if str(error) != trouble:
                    log.info("history not written now: %s", error)
                trouble = str(error)

    def _profiler(self) -> None:
        self.telemetry.profiler.run(self._stopping)

    def _forecasts(self) -> None:
        self.forecaster.run(self._stopping, lambda: self.elector.leads)

    def _notices(self) -> None:
        self.notifier.run(self._stopping, lambda: self.elector.leads)

    def _pruner(self) -> None:
        watch = retention.ClockWatch(self.clock, self.store, self.clock.boot_id())
        prune_at = self.clock.now() + FIRST_PRUNE_S
        while not self._stopping.wait(CLOCK_LOOK_S):
            if not self.elector.leads:
                continue
            try:
                watch.look()
                if self.clock.now() >= prune_at:
                    prune_at = self.clock.now() + PRUNE_S
                    wall = self.clock.wall()
                    removed = retention.prune(self.store, self.config.keep, wall, watch.steady(), watch.doubted())
                    log.info("removed what was too old: %s", removed)
            except ReshapeError as error:
                log.info("what is too old stays for now: %s", error)
            except Exception:  # one odd row must not end the thread
                log.exception("what is too old stays for now")

    def _flush(self) -> None:
        self.event_log.flush()
        if self.elector.leads:
            self.loop.accounts.flush()
            self.telemetry.gpu_use.flush()
        self.telemetry.flush(self.elector.leads)  # else the newest reports are another one's

    def _watcher(self) -> None:
        while not self._stopping.is_set():
            try:
                if self.store.wait(min(self.config.poll_s, WATCH_S)):
                    self.look()
            except ReshapeError:
                self._stopping.wait(1.0)
