"""Measures how fast each running job still improves, from its heartbeats: the progress service of `algorithms.md` 5.2.

Promises a reading of every job at SpeCon's interval, and of the jobs of each node at FlowCon's own interval and at
once when its pool changes (FlowCon, Algorithm 2); only for systems that may act. The loop calls `look` once a turn and
puts `growth` and `efficiency` into the snapshot; `ingest.py` calls `heard`. Kept in memory; the job's document gets
only what the next coordinator needs, when a category or a list changes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from adaptive_scheduler.policies.flowcon import FlowConInterval, Pool
from adaptive_scheduler.profiles.convergence import Point, falls_to, points_of
from adaptive_scheduler.profiles.growth import (
    UNMEASURED,
    UNSEEN,
    Category,
    Efficiency,
    EvaluationReading,
    Growth,
    LimitList,
    categorise,
    measure,
)
from adaptive_scheduler.profiles.profiles import Accuracy, Profiles
from adaptive_scheduler.settings import Settings
from coordinator.model import requirements
from coordinator.model import states as s
from coordinator.model.progress import UNTIMED, TrainingSpeed, last_measurement
from coordinator.model.records import Doc, JobRecord, Moment, number
from coordinator.model.requirements import Target
from coordinator.model.tables import JobChanges, JobRow, Row
from coordinator.telemetry.changed_jobs import ChangedJobs, Picked
from coordinator.telemetry.training_curve import KeptCurve, ThinnedPoints, TrainingCurve
from coordinator.telemetry.usage import IO
from sidecar.protocol import Heartbeat

MOST_POINTS = 128
LARGEST = 1e300
LEAST_IO = 1.0  # bytes per second; below it an efficiency would be noise
MOST_HEARD = 1_000  # reports kept of one window, as a job that makes no progress may send them for ever
WINDOW = 32  # most iterations that a reported speed is the mean of, as in `sidecar/output/progress.py`
Beats = Callable[[JobRecord], Heartbeat | None]


@dataclass
class _Uses:
    """Reports of use that one monitor has not read yet."""

    samples: deque[Mapping[str, float]] = field(default_factory=lambda: deque(maxlen=10_000))

    def take_means(self) -> dict[str, float]:
        """The mean by resource since the last call; without resources that were not reported or hardly used."""
        samples, self.samples = list(self.samples), deque(maxlen=self.samples.maxlen)
        known = sorted({resource for sample in samples for resource in sample})
        found = {r: [sample[r] for sample in samples if r in sample] for r in known}
        means = {r: sum(values) / len(values) for r, values in found.items()}
        return {r: mean for r, mean in means.items() if r not in IO or mean >= LEAST_IO}


@dataclass
class _Timing:
    """Training speed, and the cores in use during the same iterations."""

    speed: TrainingSpeed = UNTIMED
    lately: deque[tuple[int, float]] = field(
        default_factory=lambda: deque(maxlen=MOST_HEARD)
    )  # (iterations done, cores)

    def heard(self, beat: Heartbeat) -> None:
        seconds, done, cores = beat.progress.seconds_per_iteration, beat.progress.iterations, beat.usage.cpu_cores
        if seconds is None or seconds <= 0:  # it has just (re)started: keep what was known before
            self.lately.clear()
            return
        if cores is not None:
            self.lately.append((done, cores))
        while self.lately and self.lately[0][0] < done - WINDOW:
            self.lately.popleft()
        used = [c for _, c in self.lately]
        mean = sum(used) / len(used) if used else self.speed.cores
        self.speed = TrainingSpeed(1.0 / seconds, mean, max([self.speed.most, *used]))


class Curve:
    """Points (iterations, value) of one job: of its target's value, or without a target of its Top-5 accuracy."""

    def __init__(self) -> None:
        self._line = ThinnedPoints(MOST_POINTS)
        self._last: tuple[int, float] | None = None  # evaluation, value
        self._of_top5 = False
        self._basis: tuple[object, ...] | None = None  # of the last prediction
        self._needs: int | None = None

    @property
    def points(self) -> list[Point]:
        """The kept points and the newest one."""
        return self._line.points

    @property
    def top5(self) -> list[Point]:
        """The same points if they are a Top-5 accuracy from 0 to 1, which other jobs of the type can use; else none."""
        return [point for point in self.points if 0 <= point[1] <= 1 <= point[0]] if self._of_top5 else []

    def heard(self, job: JobRecord, beat: Heartbeat) -> None:
        """Add a point if the job has evaluated since the last one and its iterations have grown.

        The iterations are those of the heartbeat, at most one interval after the evaluation.
        """
        target, p = requirements.target(job.doc), beat.progress
        evaluation = None if p.value is None else (p.evaluations, p.value)
        if p.value is None or evaluation == self._last or not _meant(target, p.value_name):
            return
        self._last, self._of_top5 = evaluation, requirements.is_top5(p.value_name, target)
        self._line.add(float(p.iterations), p.value)

    def needs(self, target: Target, profile: Sequence[Accuracy]) -> int | None:
        """Total iterations until the target, by the convergence fit on `profile` and on its own points (1.5).

        None if no progress is visible. `profile` counts only towards a Top-5. Fitted again only with new points.
        """
        top5 = target.top5 or self._of_top5 or requirements.is_top5(target.name, target)
        known = tuple(profile) if top5 else ()
        basis = (target, known, self._line.count)
        if basis != self._basis:
            self._basis, self._needs = basis, self._predicted(target, known)
        return self._needs

    def _predicted(self, target: Target, known: Sequence[Accuracy]) -> int | None:
        own = self.points
        if any(value >= target.value if target.above else value <= target.value for _, value in own):
            return 0
        points = points_of(known, own)
        if target.above:
            return falls_to([(k, 1.0 - value) for k, value in points], 1.0 - target.value)
        return falls_to(points, target.value)


def _meant(target: Target | None, name: str) -> bool:
    return target.means(name) if target is not None else requirements.is_top5(name, None)


@dataclass
class _Watched:
    """One job: its measurements, and the reports that each of the two monitors has still to read."""

    growth: Growth = UNSEEN
    efficiency: Efficiency = UNMEASURED
    for_growth: _Uses = field(default_factory=_Uses)
    for_efficiency: _Uses = field(default_factory=_Uses)
    curve: Curve = field(default_factory=Curve)
    course: TrainingCurve = field(default_factory=TrainingCurve)
    needs: int | None = None  # total iterations until its target
    timing: _Timing = field(default_factory=_Timing)

    @property
    def facts(self) -> tuple[object, ...]:
        """The facts that are stored when they change: category, list, first measurement."""
        return self.growth.category, self.efficiency.list, self.efficiency.measured


class ProgressTracker:
    """`heard`, `forget`, `top5`, `course` and `last_course` may be called from any thread, all else from the loop's."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.changed = ChangedJobs()  # jobs of which `of` or `speed` may answer something else
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._grown: set[str] = set()  # jobs whose course is to be stored
        self._due = 0.0  # when SpeCon reads all jobs next
        self._pace: dict[str, FlowConInterval] = {}
        self._take_over = False
        self._of: Mapping[str, JobRecord] = {}  # the jobs in `_watched`
        self._on_cpu = Picked(lambda job: job.uses_cpu)
        self._aims = Picked(lambda job: requirements.target(job.doc) is not None)

    def begin(self) -> None:
        """Start to lead: the next `look` takes over what another coordinator stored. Curves are kept."""
        self._take_over = True

    def forget_job(self, job_id: str) -> None:
        """Drop all that is kept under this name, which a new job has."""
        with self._lock:
            self._watched.pop(job_id, None)
            self._of = {}
        self.changed.add(job_id)

    def next_s(self, now: float) -> float:
        """Seconds until a reading is due, after which the loop decides at once (the Messenger of SpeCon)."""
        if not self._watched:
            return LARGEST
        due = [self._due] if "specon" in self._settings.systems else []
        due += [pace.due_s for pace in self._pace.values()] if "flowcon" in self._settings.systems else []
        return max(0.0, min(due, default=LARGEST) - now)

    def heard(self, job: JobRecord, beat: Heartbeat) -> None:
        """Take the use, the speed and the evaluated value from a heartbeat."""
        with self._lock:
            if watched := self._watched.get(job.id):
                watched.curve.heard(job, beat)
                watched.course.heard(job, beat, _trains(job, beat))
                if watched.course.is_due:
                    self._grown.add(job.id)
                watched.timing.heard(beat)
        self.changed.add(job.id)
        usage = beat.usage
        used = {"cpu": usage.cpu_cores, "memory": usage.memory, **{io: getattr(usage, io) for io in IO}}
        sample = {resource: float(value) for resource, value in used.items() if value is not None}
        if sample and beat.shim.trainer == "running":
            with self._lock:
                if watched := self._watched.get(job.id):
                    self._keep(watched, job, sample)

    def _keep(self, watched: _Watched, job: JobRecord, sample: Mapping[str, float]) -> None:
        """Keep a sample for each system that will read it; others would pile up."""
        if "specon" in self._settings.systems:
            watched.for_growth.samples.append(sample)
        if "flowcon" in self._settings.systems and job.uses_cpu:
            watched.for_efficiency.samples.append(sample)

    def progress_of_job(self, job: JobRecord) -> tuple[Growth, Efficiency, int | None]:
        """Return the job's two measurements, and the total iterations predicted until its target, if it has one."""
        w = self._watched.get(job.id)
        return (w.growth, w.efficiency, w.needs) if w else (UNSEEN, UNMEASURED, None)

    def top5(self, job: JobRecord) -> list[Point]:
        """Return the job's Top-5 accuracy by iterations, from which other jobs of its type are predicted."""
        with self._lock:
            watched = self._watched.get(job.id)
            return watched.curve.top5 if watched else []

    def course(self, job: JobRecord) -> KeptCurve:
        """Return how the training of a job went until now; of one that has ended as it was stored."""
        with self._lock:
            watched = None if job.doc.get("closed") else self._watched.get(job.id)
            return watched.course.kept if watched else KeptCurve.from_row(job.doc)

    def last_course(self, job: JobRecord) -> JobChanges:
        """Return the fields that store the course of a job now, as before it is closed; empty if they are stored."""
        with self._lock:
            watched = self._watched.get(job.id)
            return {"curve": watched.course.field} if watched and watched.course.is_new else {}

    def speed(self, job: JobRecord) -> TrainingSpeed:
        watched = self._watched.get(job.id)
        return watched.timing.speed if watched else UNTIMED

    def look(
        self, jobs: Mapping[str, JobRecord], beats: Beats, at: Moment, profiles: Profiles | None = None
    ) -> dict[str, JobChanges]:
        """Make the readings that are due. Returns, by job, the fields to store in its document."""
        self._follow(jobs, at)
        due = "specon" in self._settings.systems and at.now >= self._due
        read = jobs if due else self._on_cpu.from_jobs(jobs)
        before = {job_id: self._watched[job_id].facts for job_id in read}
        training = {j.id: (j, beat) for j in read.values() if (beat := beats(j)) is not None and _trains(j, beat)}
        if due:
            self._due = at.now + self._settings.specon.interval_s
            self._categorise(training, at.now)
        if "flowcon" in self._settings.systems:
            self._measure(training, at.now)
        self._predict(jobs, profiles or Profiles())
        self.changed.add(*training)
        changed = [job_id for job_id in read if self._watched[job_id].facts != before[job_id]]
        found = {job_id: self._kept(job_id, at) for job_id in changed}
        for job_id, course in self._courses().items():
            found[job_id] = found.get(job_id, {}) | course
        return found

    def _courses(self) -> dict[str, JobChanges]:
        """Return, by job, the courses that have grown enough to be stored."""
        with self._lock:
            grown = self._grown & self._watched.keys()
            self._grown = set()
            return {job_id: {"curve": self._watched[job_id].course.stored()} for job_id in grown}

    def _follow(self, jobs: Mapping[str, JobRecord], at: Moment) -> None:
        """Forget jobs that have ended; take over what another coordinator stored of the others."""
        with self._lock:
            if jobs is self._of and not self._take_over:
                return
            for job_id in self._watched.keys() - jobs.keys():
                del self._watched[job_id]
            new = jobs.keys() - self._watched.keys()
            for job_id in new:
                doc = jobs[job_id].doc
                self._watched[job_id] = _Watched(*restored(doc, at), course=TrainingCurve(KeptCurve.from_row(doc)))
            self.changed.add(*(jobs if self._take_over else new))
            for job_id, watched in self._watched.items() if self._take_over else ():
                growth, efficiency = restored(jobs[job_id].doc, at)
                if watched.facts != _Watched(growth, efficiency).facts:
                    watched.growth, watched.efficiency = growth, efficiency
            self._of, self._take_over = jobs, False

    def _categorise(self, training: Mapping[str, tuple[JobRecord, Heartbeat]], now: float) -> None:
        for job_id, (job, beat) in sorted(training.items()):
            watched, moved = self._watched[job_id], job.doc.get("migrated_ts") is not None
            with self._lock:  # for one job at a time: heartbeats wait for it
                used = watched.for_growth.take_means()
            reading = _reading(job, beat, used, now)
            watched.growth = categorise(watched.growth, reading, self._settings.specon, moved)

    def _measure(self, training: Mapping[str, tuple[JobRecord, Heartbeat]], now: float) -> None:
        """Read the jobs trained on CPU, node by node; those on GPUs are left out (X4)."""
        pools: dict[str, dict[str, tuple[JobRecord, Heartbeat]]] = {node: {} for node in self._pace}
        for job_id, (job, beat) in sorted(training.items()):
            if job.uses_cpu:
                pools.setdefault(str(job.node), {})[job_id] = (job, beat)
        for node, members in sorted(pools.items()):
            pool: Pool = frozenset((job.id, job.generation) for job, _ in members.values())
            pace = self._pace.get(node, FlowConInterval())
            if not pace.is_due(now, pool):
                continue
            for job_id, (job, beat) in members.items():
                watched = self._watched[job_id]
                with self._lock:
                    used = watched.for_efficiency.take_means()
                reading = _reading(job, beat, used, now)
                watched.efficiency = measure(watched.efficiency, reading, self._settings.flowcon)
            records = [self._watched[job_id].efficiency for job_id in members]
            self._pace[node] = pace.stepped(now, pool, records, self._settings.flowcon)

    def _predict(self, jobs: Mapping[str, JobRecord], profiles: Profiles) -> None:
        """Predict each job with a target from other jobs of its type and from its own curve (1.5).

        Without the lock, for which heartbeats wait: those of a type are all made anew when a job of it is complete. A
        point that comes meanwhile is not counted yet, so that job is predicted again at the next turn.
        """
        for job_id, job in self._aims.from_jobs(jobs).items():
            watched, target = self._watched[job_id], cast(Target, requirements.target(job.doc))
            before, watched.needs = watched.needs, watched.curve.needs(target, profiles.accuracy(job.job_type))
            if watched.needs != before:
                self.changed.add(job_id)

    def _kept(self, job_id: str, at: Moment) -> JobChanges:
        """The fields from which the next coordinator goes on with the same category and list."""
        g, e = self._watched[job_id].growth, self._watched[job_id].efficiency
        converged = None if g.converged_s is None else at.wall - (at.now - g.converged_s)
        return {
            "category": g.category,
            "growth": {"low": g.low, "high": g.high, "converged_ts": converged},
            "efficiency": {"list": e.list, "measured": e.measured, "peak": dict(e.peak)},
        }


def _trains(job: JobRecord, beat: Heartbeat) -> bool:
    ready = job.state == s.RUNNING and job.operation is None
    return ready and beat.shim.trainer == "running" and beat.shim.generation == job.generation


def _reading(job: JobRecord, beat: Heartbeat, usage: Mapping[str, float], now: float) -> EvaluationReading:
    progress = beat.progress
    return EvaluationReading(
        at_s=now,
        value=last_measurement(job, beat)[0] if progress.evaluations else None,
        evaluations=progress.evaluations,
        iterations=progress.iterations,
        generation=job.generation,
        usage=usage,
        limits=job.limits,
    )


def restored(doc: JobRow, at: Moment) -> tuple[Growth, Efficiency]:
    """The measurements that another coordinator stored in the job's document; unreadable fields count as unknown."""
    growth, efficiency = _object(doc, "growth"), _object(doc, "efficiency")
    category = doc.get("category") if doc.get("category") in get_args(Category) else UNSEEN.category
    lists = efficiency.get("list") if efficiency.get("list") in get_args(LimitList) else UNMEASURED.list
    peak = {r: value for r, given in _object(efficiency, "peak").items() if (value := number(given)) is not None}
    return (
        Growth(
            cast(Category, category),
            converged_s=at.maybe(growth.get("converged_ts")),
            low=number(growth.get("low"), -LARGEST),
            high=number(growth.get("high"), -LARGEST),
        ),
        Efficiency(cast(LimitList, lists), measured=efficiency.get("measured") is True, peak=peak),
    )


def _object(doc: Row[Any], field: str) -> Doc:
    found = doc.get(field)
    return found if isinstance(found, dict) else {}
