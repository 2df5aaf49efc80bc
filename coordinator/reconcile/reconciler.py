"""Reconciles jobs one at a time: observe, compute the next step with `lifecycle`, persist or perform it, repeat.

Each step is persisted before the next one begins, so a coordinator recovers from a crash at any point by reading. Each
step has a failpoint before and after it, at which tests kill the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.adapters.pod_access import NoSeats
from coordinator.config import Config
from coordinator.errors import Conflict, Fatal, ReshapeError, Transient
from coordinator.model import states as s
from coordinator.model.events import (
    GpuChanged,
    LaunchRequested,
    PodsRequested,
    RecordEvent,
    RemovalRequested,
    StartSent,
    StopSent,
)
from coordinator.model.grace import ENDLESS_S, grace_s
from coordinator.model.records import JobRecord
from coordinator.model.resumption import leased
from coordinator.model.tables import JobChanges, JobRow
from coordinator.ports import Clock, Platform, PodAccess, Sidecars
from coordinator.reconcile.actions import (
    RequestLaunch,
    RequestRemoval,
    StartTrainer,
    Step,
    StopTrainer,
    Wait,
    WriteGpu,
    WriteJob,
)
from coordinator.reconcile.filtered_pods import close_before, is_at_rest, open_before
from coordinator.reconcile.gang_observer import GangObserver, startup_problem
from coordinator.reconcile.gpu_writes import together, write_together
from coordinator.reconcile.lifecycle import next_step
from coordinator.reconcile.observed_state import ComingLaunch, ObservedState
from coordinator.stores.cache import Cache
from coordinator.telemetry.reports import Reports
from sidecar.protocol import Heartbeat, ShimStatus, StartCall, StopCall, command_id, launch_key

log = logging.getLogger(__name__)

CANNOT_CLOSE = "its GPUs cannot be closed to it"
UNREACHABLE_BEATS = 4
STEPS_AT_ONCE = 200  # more steps in a row than any operation needs: a bug


class Unanswered(NamedTuple):
    """A command that a sidecar has not answered, or a node's agent has not carried out."""

    command: str  # stop or start; of an agent open or close
    since: float
    why: str


@dataclass
class _JobTracker:
    """The time of a job's last transition, and the requests made of the platform; not persisted."""

    point: tuple[object, ...] = ()
    since: float = 0.0
    launched: set[int] = field(default_factory=set)
    removed: dict[int, str] = field(default_factory=dict)  # and why
    pods: dict[int, int] = field(default_factory=dict)  # requested pods, by launch of a gang
    unanswered: Unanswered | None = None  # the command that the job waits with


class Reconciler:
    """`reconcile(job_id)` may run in several threads, but never twice at once for one job."""

    def __init__(
        self,
        cache: Cache,
        reports: Reports,
        sidecars: Sidecars,
        platform: Platform,
        clock: Clock,
        config: Config,
        master_key: bytes,
        record: RecordEvent,
        failpoint: Callable[[str], None] = lambda name: None,
        launch_doc: Callable[[JobRecord], JobRow] = lambda job: job.doc,
        node_unavailable: Callable[[str | None], bool] = lambda node: False,
        last_course: Callable[[JobRecord], JobChanges] = lambda job: {},
        access: PodAccess | None = None,
    ) -> None:
        self.cache, self.reports, self.sidecars, self.platform = cache, reports, sidecars, platform
        self.clock, self.config, self._master_key = clock, config, master_key
        self._record, self._failpoint, self._launch_doc = record, failpoint, launch_doc
        self._node_unavailable = node_unavailable
        self._last_course = last_course
        self._access = access or NoSeats()
        self._gangs = GangObserver(reports, platform, config, node_unavailable)
        self._trackers: dict[str, _JobTracker] = {}

    def reconcile(self, job_id: str) -> Wait:
        """Advance one job as far as possible now; returns what it waits for.

        Raises `Conflict` (read again at once) and `Transient` (try again later).
        """
        for _ in range(STEPS_AT_ONCE):
            observed = self._read(job_id)  # 1 read
            if observed is None:
                self._trackers.pop(job_id, None)
                return Wait(None, "gone")
            step = next_step(observed)  # 2 decide
            if isinstance(step, Wait):
                return step
            self._failpoint(f"before:{step.name}")
            self._perform(observed, step)  # 3 persist or act
            self._failpoint(f"after:{step.name}")
        raise Fatal(f"job {job_id} takes more than {STEPS_AT_ONCE} steps in a row")

    def overdue_s(self, job_id: str) -> float:
        """Seconds until the next report of a job's sidecar is overdue; 0 or less if it is, or if none is expected."""
        job = self.cache.job(job_id)
        return self.reports.stale_s(job) if job is not None and job.launch else 0.0

    def unanswered(self, job_id: str) -> Unanswered | None:
        """The command to a job's sidecar that is sent again until it is answered; None if there is none."""
        tracker = self._trackers.get(job_id)
        return None if tracker is None else tracker.unanswered

    def _read(self, job_id: str) -> ObservedState | None:
        job = self.cache.job(job_id)
        if job is None:
            return None
        tracker = self._trackers.setdefault(job.id, _JobTracker())
        pods = self._gangs.pods(job, job.launch in tracker.removed)
        jobs = self.cache.jobs()
        peers = [jobs[peer] for peer in job.operation.peers if peer in jobs] if job.operation else []
        newcomer = jobs.get(str(job.operation.newcomer)) if job.operation else None
        seen = pods.seen
        gpus = self.cache.gpus_of(job, *peers)
        over = frozenset(k for k, beat in pods.each.items() if beat.shim.trainer == "exited")
        self._track(job, tracker, seen.shim.command_id if seen else "", over)
        waited_s = self.clock.now() - tracker.since
        late = seen is None and job.launch in tracker.launched and waited_s > self.config.init_timeout_s
        failure = self.platform.failure(job.doc) if job.launch in tracker.launched else None
        leaves = job.operation.leaves if job.operation else None
        return ObservedState(
            job=job,
            jobs=jobs,
            gpus=gpus,
            config=self.config,
            wall=self.clock.wall(),
            now=self.clock.now(),
            boot=self.clock.boot_id(),
            seen=seen,
            unreachable=job.launch > 0
            and self.reports.silent_s(job) > self.config.grace_s + UNREACHABLE_BEATS * self.config.heartbeat_s,
            lost=pods.lost or self._lost(job, tracker),
            node_unavailable=self._gangs.node_unavailable(job, gpus),
            launch_asked=job.launch in tracker.launched,
            launch_failure=failure,
            unplaced=self.platform.unplaced(job.doc) if late or failure else None,
            remove_asked=job.launch in tracker.removed,
            waited_s=waited_s,
            newcomer=self._newcomer(job.coming, tracker, waited_s) if job.coming else None,
            peer_seen=self.reports.newest_of_job(newcomer) if newcomer else None,
            old_launch_removed=leaves in tracker.removed,
            pods=pods.each,
            lost_pods=pods.lost_pods,
            silent_pods=self._gangs.silent_pods(job),
            pods_asked=tracker.pods.get(job.launch),
            growth=self._gangs.growth(job, gpus, tracker.pods.get(job.launch), waited_s),
            last_course=self._last_course(job) if job.state in s.ENDED else {},
        )

    def _newcomer(self, coming: JobRecord, tracker: _JobTracker, waited_s: float) -> ComingLaunch:
        beat = self.reports.newest_of_job(coming)
        asked = coming.launch in tracker.launched
        up = beat is not None
        late = not up and asked and waited_s > self.config.init_timeout_s
        return ComingLaunch(
            up=up,
            lost=up and not self.reports.fresh(coming) and self._ended(coming),
            node_unavailable=self._node_unavailable(coming.node),
            asked=asked,
            failure=(self.platform.failure(coming.doc) if asked else None) or startup_problem([beat]),
            unplaced=self.platform.unplaced(coming.doc) if late else None,
            removed=tracker.removed.get(coming.launch),
        )

    def is_over(self, job: JobRecord) -> bool:
        """True if its launch was put down, or its leases have ended, so that its last report says no more what runs."""
        return job.doc.get("down") == job.launch or self._all_over(job)

    def _ended(self, job: JobRecord) -> bool:
        """True if certainly no process of a launch that had come up is left, or of one pod of a gang."""
        lost_pods = job.gpus_per_pod is not None and bool(self.platform.ended(job.doc))
        return lost_pods or self.platform.gone(job.doc) or self._all_over(job)

    def _all_over(self, job: JobRecord) -> bool:
        return all(self._gangs.over(job, member) for member in range(job.members))

    def _track(self, job: JobRecord, tracker: _JobTracker, command: str, over: frozenset[int]) -> None:
        newest = job.coming.launch if job.coming else job.launch
        pods = tracker.pods.get(job.launch)
        asked = newest in tracker.launched, newest in tracker.removed, job.launch in tracker.removed, pods
        point = (job.state, job.launch, job.generation, command, asked, over)
        if point != tracker.point:
            tracker.point, tracker.since = point, self.clock.now()
            tracker.unanswered = None

    def _lost(self, job: JobRecord, tracker: _JobTracker) -> bool:
        """True if the present launch had come up (or was to be removed) and certainly no process of it is left."""
        removed = job.launch in tracker.removed
        if job.launch == 0:
            return False
        op = job.operation
        coming = op is not None and (op.kind == "start" or job.generation >= op.generation)
        had_come_up = not coming or job.doc.get("up") == job.launch or self.reports.newest_of_job(job) is not None
        if not (had_come_up or removed) or (not removed and self.reports.fresh(job)):
            return False
        if self.platform.gone(job.doc):
            return True
        # A launch that never came up reports nothing if its node is lost; it got no start since its removal.
        was_up = job.doc.get("up") == job.launch or self.reports.newest_of_job(job) is not None
        over = was_up or (removed and self.clock.now() - tracker.since > self.config.wait_out_s)
        return over and self._all_over(job)

    def _perform(self, observed: ObservedState, step: Step) -> None:
        job = observed.job
        if isinstance(step, WriteJob):
            self._write(observed, step)
        elif isinstance(step, WriteGpu):
            self._write_gpus(observed, step)
        elif isinstance(step, RequestLaunch):
            self._launch(job, step)
        elif isinstance(step, RequestRemoval):
            launch = step.launch or job.launch
            self._remove(job, launch, step.why)
            self._record(job, RemovalRequested(launch))
        elif isinstance(step, StopTrainer | StartTrainer):
            self._open_filters(job, step)
            self._command(observed, step)

    def _write_gpus(self, observed: ObservedState, first: WriteGpu) -> None:
        """Write a GPU and those that the same step would write next; any of them may be all that a crash leaves."""
        steps = together(observed, first)
        self._close_filters(observed, steps)
        written = write_together(self.cache, observed.gpus, steps)
        for after in written:
            self._record(observed.job, GpuChanged(observed.gpus[after.id], after))
        if len(written) < len(steps):
            raise Conflict(f"GPUs of job {observed.job.id} were changed meanwhile: read them again.")

    def _open_filters(self, job: JobRecord, step: StopTrainer | StartTrainer) -> None:
        """Open its GPUs to the job's pods before a start; until then it waits as for a sidecar that does not answer."""
        if not isinstance(step, StartTrainer):
            return
        try:
            open_before(self._access, job, step)
        except Transient as error:
            self._note_agent(job, "open", str(error))
            raise

    def _close_filters(self, observed: ObservedState, steps: Sequence[WriteGpu]) -> None:
        """Close GPUs to the pods of those that lose them. Where that cannot be done, the pod of a job at rest goes."""
        job = observed.job
        try:
            close_before(self._access, observed, steps)
            self._note_agent(job, "close", "")
        except Transient as error:
            self._note_agent(job, "close", str(error))
            left = job.operation.leaves if job.operation is not None else None
            if is_at_rest(job) and job.launch and not observed.remove_asked:
                self._remove(job, job.launch, CANNOT_CLOSE)
            elif left is not None and left != job.launch and not observed.old_launch_removed:
                self._remove(job, left, CANNOT_CLOSE)  # it trains elsewhere from now on
            raise

    def _note_agent(self, job: JobRecord, command: str, why: str) -> None:
        """Note why a node's agent does not open or close GPUs to a pod, and since when; empty: it has done so."""
        tracker = self._trackers[job.id]
        before = tracker.unanswered
        since = before.since if before is not None and before.command == command else self.clock.now()
        if why:
            tracker.unanswered = Unanswered(command, since, why)
        elif before is not None and before.command == command:
            tracker.unanswered = None

    def _launch(self, job: JobRecord, step: RequestLaunch) -> None:
        self.platform.keep(job.doc)
        job, tracker = (job.coming if step.newcomer else None) or job, self._trackers[job.id]
        if step.gpu_ids is not None:
            job = JobRecord({**job.doc, "gpu_ids": list(step.gpu_ids), "num_gpus": len(step.gpu_ids)})
        tracker.launched.add(job.launch)
        again = self.reports.newest_of_job(job) is not None or job.launch in tracker.pods
        self._record(job, PodsRequested(job.members) if again else LaunchRequested())
        try:
            self.platform.launch(self._launch_doc(job))
        except Transient:
            tracker.launched.discard(job.launch)  # the request failed
            raise
        if job.gpus_per_pod is not None:
            self.reports.keep_only(job, job.members)
            tracker.pods[job.launch] = job.members

    def _remove(self, job: JobRecord, launch: int, why: str) -> None:
        removed = self._trackers[job.id].removed
        removed[launch] = why
        try:
            self.platform.remove({**job.doc, "launch": launch})
        except Transient:
            del removed[launch]  # the request failed
            raise

    def _write(self, observed: ObservedState, step: WriteJob) -> None:
        before = observed.jobs.get(step.job, observed.job) if step.job else observed.job
        after = self.cache.write_job(before, step.changes, step.name)
        log.info(
            "%s %s -> %s g%d v%s",
            step.name,
            after.id,
            after.state,
            after.generation,
            after.doc.get("version"),
            extra={"job": after.id, "generation": after.generation, "step": step.name},
        )
        if after.launch > 0:
            self.platform.keep(after.doc)
        for event in (step.earlier, step.event):
            if event is not None:
                self._record(after, event, before)

    def _command(self, observed: ObservedState, step: StopTrainer | StartTrainer) -> None:
        """Send the command to each pod that has not obeyed yet; one that does not answer does not block the others."""
        job, began, sent = observed.job, self.clock.now(), 0
        beats = observed.pods if job.gpus_per_pod is not None else {0: observed.seen} if observed.seen else {}
        failed: list[ReshapeError] = []
        for member in range(job.members):
            beat = None if member in observed.lost_pods else beats.get(member)
            if beat is None or (job.gpus_per_pod is not None and _has_obeyed(observed, beat.shim, step)):
                continue
            sent_at = self.clock.now()
            try:
                self.reports.learn(job, self._call(observed, beat, step), sent_at, member)
                sent += 1
            except ReshapeError as error:
                failed.append(error)
        if sent:
            kind = StopSent if isinstance(step, StopTrainer) else StartSent
            self._record(job, kind(step.generation, began))
        tracker = self._trackers[job.id]
        silent = next((error for error in failed if isinstance(error, Transient)), None)
        since = began if tracker.unanswered is None else tracker.unanswered.since
        tracker.unanswered = None if silent is None else Unanswered(step.name, since, str(silent))
        if failed:
            raise failed[0]

    def _call(self, observed: ObservedState, beat: Heartbeat, step: StopTrainer | StartTrainer) -> ShimStatus:
        """`Conflict` says that the shim has seen a higher generation; its next heartbeat names it."""
        job = observed.job
        key = launch_key(self._master_key, job.uid, job.launch)
        command = command_id(job.id, step.generation, step.name)
        if isinstance(step, StopTrainer):
            command = observed.freeze_id if step.freeze else command
            # Of a gang only the first pod announces; the others save with it.
            together = step.wait and job.gpus_per_pod is not None and observed.seen is not None and observed.seen.hook
            stop = StopCall(
                generation=step.generation,
                command_id=command,
                grace_s=ENDLESS_S if together else grace_s(job, beat, self.config.grace_s),
                wait=step.wait,
                in_place=step.in_place,
                freeze=step.freeze,
                gpu_ids=list(step.gpu_ids),
                unasked=observed.stop_is_unasked,
            )
            return self.sidecars.stop(beat.url, key, job.id, job.launch, stop)
        start = StartCall(
            generation=step.generation,
            command_id=command,
            gpu_ids=list(job.parts(step.gpu_ids)[beat.member]),
            checkpoint=step.checkpoint,
            lease_s=self.config.granted_s(leased(job)),
            env=self._gangs.rendezvous_env(job, beat.member) if job.gpus_per_pod is not None else {},
        )
        return self.sidecars.start(beat.url, key, job.id, job.launch, start)


def _has_obeyed(observed: ObservedState, shim: ShimStatus, step: StopTrainer | StartTrainer) -> bool:
    """True if a pod of a gang has already obeyed the command."""
    started = shim.command_id == observed.start_id
    if isinstance(step, StartTrainer):
        return started
    return shim.generation >= step.generation and (started or shim.trainer != "running")
