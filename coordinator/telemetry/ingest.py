"""Takes all reports of sidecars and node agents, and learns from them.

`take` keeps a heartbeat, `learn` measures progress and speed by it; the decision loop reads `seen`. In memory;
`flush` writes what a successor needs. Called by `coordinator.api.signed_messages` with verified messages only.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from adaptive_scheduler.models import pause
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from coordinator.giving_way import GiveWay
from coordinator.model.progress import ObservedJob, state_of
from coordinator.model.records import JobRecord, number
from coordinator.ports import Clock, Measurements, Store, moment_of
from coordinator.stores.cache import Cache
from coordinator.telemetry.changed_jobs import ChangedJobs, changed
from coordinator.telemetry.gpu_faults import GpuFaults
from coordinator.telemetry.gpu_use import GpuUse
from coordinator.telemetry.heartbeats import HeartbeatBatches
from coordinator.telemetry.measured.measured_use import MeasuredUse, UsedFrom
from coordinator.telemetry.node_reports import NodeReports
from coordinator.telemetry.observation_profiler import ObservationProfiler
from coordinator.telemetry.profile_estimator import ProfileEstimator
from coordinator.telemetry.progress_tracker import ProgressTracker
from coordinator.telemetry.reports import Reports
from coordinator.telemetry.step_watch import StepWatch
from sidecar.protocol import Heartbeat

LEARN_AFTER = 10  # iterations after which a measured speed is learned; the first ones are slower


class Telemetry:
    """Thread-safe."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        clock: Clock,
        heartbeat_s: float,
        settings: Settings,
        measurements: Measurements | None = None,
        no_step_s: float = 100.0,
    ) -> None:
        self._cache, self._clock, self._settings = cache, clock, settings
        self.reports = Reports(clock, heartbeat_s)
        self.give_way = GiveWay(lambda: self.reports.heard)
        self.nodes = NodeReports(clock, heartbeat_s)
        self.gpu_faults = GpuFaults()
        self.progress = ProgressTracker(settings)
        self.steps = StepWatch(no_step_s, heartbeat_s)
        self.estimator = ProfileEstimator(store)
        self.measured = MeasuredUse(clock, measurements, self.nodes.others)
        self.profiler = ObservationProfiler(self.estimator, clock, measurements, self.measured)
        self.gpu_use = GpuUse(store, clock, cache.node_of)
        self.batches = HeartbeatBatches(store, self.reports, cache, clock, self.give_way)
        self.profiles = Profiles()  # as the loop last read them from the store
        self.reshaped_at: dict[str, float] = {}  # when each job was last reshaped, on `clock.now`
        self._changed = ChangedJobs()  # jobs whose cool-down has changed
        self._followed: Mapping[str, JobRecord] = {}  # jobs in `observed`
        self._followed_with: Profiles | None = None  # None: nothing of `observed` counts
        self.observed: Mapping[
            str, ObservedJob
        ] = {}  # `seen` of each job as `follow` found it; another map after a change

    def begin(self) -> None:
        """Forget reports from before this coordinator acted: another one may have acted meanwhile."""
        self.reports.begin()
        self.nodes.begin()
        self.gpu_faults.begin()
        self.gpu_use.begin()
        self.progress.begin()
        self.steps.begin()
        self.reshaped_at.clear()
        self._followed_with = None  # nothing of `observed` counts

    def keep_heartbeat(self, job: JobRecord, beat: Heartbeat) -> bool:
        """Keep a heartbeat of the job's present launch; True if it calls for a decision or a step."""
        self.profiler.heard(job, beat)  # adds up the pods of a gang
        self.gpu_use.add_heartbeat(job, beat)
        # Of a shared machine: what a user's process says of a GPU counts for no other user; `reshape up` looks itself.
        believed = not beat.emulated and job.doc.get("owner_uid") is None
        sick = believed and self.gpu_faults.keep_readings(beat.gpus)
        return self.reports.keep_heartbeat(job, beat) or sick

    def learn(self, job: JobRecord, beat: Heartbeat) -> None:
        """Measure progress and learn speeds from a heartbeat that was taken, of a gang from all its pods together."""
        if job.gpus_per_pod is None:
            self._learn(job, beat)
        elif beat.member == 0 and (whole := self.reports.newest_of_job(job)) is not None:
            self._learn(job, whole)

    def take_coming(self, job: JobRecord, beat: Heartbeat) -> bool:
        """Keep a heartbeat of a move's next launch, which has no training to report yet."""
        return self.reports.keep_heartbeat(job, beat)

    def _learn(self, job: JobRecord, beat: Heartbeat) -> None:
        """Progress and speed of the whole job."""
        self.measured.heard(job, beat)
        self.steps.heard(job, beat, moment_of(self._clock))
        self.progress.heard(job, self.measured.told(job, beat)[0])
        if (save_s := beat.progress.save_s) is not None:
            self.estimator.save(job.job_type, self.profiles, save_s, state_of(beat)[0])
        speed = beat.progress.seconds_per_iteration
        measured = beat.progress.iterations >= LEARN_AFTER and beat.shim.trainer == "running"
        gpu = self._cache.first_gpu(job)
        if speed is None or not measured or job.operation is not None or gpu is None:
            return
        if beat.shim.generation == job.generation:
            self.estimator.speed(job.job_type, gpu.gpu_type, len(job.gpu_ids), speed)

    def report(self, job: JobRecord) -> tuple[Heartbeat | None, UsedFrom | None]:
        """The job's newest report with the use that counts, and where that is from; None before the first one."""
        beat = self.reports.newest_of_job(job)
        return (None, None) if beat is None else self.measured.told(job, beat)

    def seen(self, job: JobRecord) -> ObservedJob:
        """Return the observations of one job, for the snapshot that decisions use."""
        cooling_s, progress = self._cooling_until(job), self.progress
        return ObservedJob(self.report(job)[0], cooling_s, *progress.progress_of_job(job), progress.speed(job))

    def follow(self, jobs: Mapping[str, JobRecord]) -> set[str]:
        """Bring `observed` up to date, which costs as much as has changed; returns the ids of the jobs looked at.

        For the loop's thread alone.
        """
        news = self._changed.take_ids() | self.reports.changed.take_ids() | self.progress.changed.take_ids()
        if self._followed_with is not self.profiles:
            news.update(self.reshaped_at.copy())  # cool-downs rest on them
        stale = {*jobs} if self._followed_with is None else {*changed(self._followed, jobs)} | (news & jobs.keys())
        self._followed_with = None  # until all are looked at: after an error all are
        if stale or jobs is not self._followed:
            found = dict(self.observed)
            for job_id in stale:
                found[job_id] = self.seen(jobs[job_id])
                self.give_way()
            if len(found) > len(jobs):
                found = {job_id: observed for job_id, observed in found.items() if job_id in jobs}
            self.observed, self._followed = found, jobs
        self._followed_with = self.profiles
        return stale

    def _cooling_until(self, job: JobRecord) -> float:
        at = self.reshaped_at.get(job.id)
        if at is None:
            return 0.0
        return at + self._settings.cooldown_factor * self.reshape_s(job)

    def reshape_s(self, job: JobRecord) -> float:
        """Seconds of a reshape of this job: its own measured ones, else those that are predicted."""
        return number(job.doc.get("reshape_cost_s")) or self.predicted_reshape_s(job)

    def predicted_reshape_s(self, job: JobRecord) -> float:
        """Seconds of a reshape of this job by the profile of its type and the size of its state."""
        known = self.profiles.overheads(job.job_type)
        size, path = state_of(self.reports.newest_of_job(job), job.recreated)
        relaunch_s = known.k8s_term + known.k8s_init if job.recreated else 0.0
        return known.reshape + pause.more_s(known, size, path) + relaunch_s

    def reshaped(self, job: JobRecord) -> None:
        """Start the job's cool-down."""
        self.reshaped_at[job.id] = self._clock.now()
        self._changed.add(job.id)

    def completed(self, job: JobRecord) -> None:
        """Learn from a job that is complete: its observation, and its accuracy curve."""
        self.profiler.finished(job)
        self.estimator.curve(job.job_type, self.progress.top5(job))

    def forget_job(self, job_id: str) -> None:
        """A new job has the name of one that has ended: nothing of that one counts."""
        self.reshaped_at.pop(job_id, None)
        self._changed.add(job_id)
        self.progress.forget_job(job_id)
        self.steps.forget_job(job_id)

    def keep_only(self, jobs: Container[str]) -> None:
        """Drop the cool-downs, and what was heard of their steps, of all jobs but these."""
        self.steps.keep_only(jobs)
        for job_id in list(self.reshaped_at):  # a copy: reconcilers add to it meanwhile
            if job_id not in jobs:
                self.reshaped_at.pop(job_id, None)

    def flush(self, leads: bool) -> None:
        """Write what was learned, and where this coordinator acts the newest reports."""
        self.estimator.flush()
        if leads:
            self.batches.flush()
