"""Keeps a forecast of all open jobs up to date, in a thread of its own, and says when each starts and ends.

Promises: nothing of it runs in the decision loop or for a heartbeat; it takes at most `SHARE` of a core on average, and
one simulation `BUDGET_S` and what its last moment takes, however many jobs there are. What it does not reach in that
time has an interval of the plain estimate (`coordinator/expected_times.py`), by the errors of such estimates;
more than `MOST` jobs are not simulated at all. What rests on an unknown length has no interval. It is made anew after
an event, so after each decision, and once a minute. What was predicted of a job is written to the table `predictions`
once the job is complete. Called by the coordinator.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.errors import ReshapeError
from coordinator.events.event_log import EventLog
from coordinator.events.metrics import Metrics
from coordinator.expected_times import ExpectedTimes
from coordinator.forecasts.forecast import JobForecast, forecast
from coordinator.forecasts.intervals import Interval, WhenExpected
from coordinator.forecasts.live_state import LiveState
from coordinator.forecasts.prediction_log import PredictionLog
from coordinator.model import states as s
from coordinator.model.records import JobRecord, number
from coordinator.ports import Clock, Key, Store
from coordinator.scheduling.loop import DecisionLoop
from coordinator.scheduling.snapshot_jobs import is_held
from coordinator.stores.cache import Cache
from coordinator.telemetry.ingest import Telemetry
from simulator.state import Occupancy

log = logging.getLogger(__name__)

PREDICTIONS = "predictions"
UNKNOWN = ExpectedTimes()
BUDGET_S = 2.0  # of CPU time
MOST = 1_000  # jobs; of more the budget reaches hardly any
SHARE = 0.05  # of a core
PAUSE_S = 1.0  # shortest time between two forecasts
REFRESH_S = 60.0  # longest
SET_S = 5.0  # by which the wall clock leaves the other one if somebody has set it


@dataclass(frozen=True)
class Present:
    """The system at a moment: what a simulation begins with."""

    snapshot: ClusterSnapshot
    now: float  # on the clock of all times in it
    silent_s: Mapping[str, float]  # by running job, since its last report
    held: frozenset[str]  # jobs that something else than the scheduler keeps from starting
    relaunches: bool  # a reshape is another launch


class Forecaster:
    """Thread-safe but for `update`, which one thread calls."""

    def __init__(
        self,
        store: Store,
        loop: DecisionLoop,
        cache: Cache,
        telemetry: Telemetry,
        clock: Clock,
        event_log: EventLog,
        metrics: Metrics,
    ) -> None:
        self._store, self._loop, self._cache, self._telemetry = store, loop, cache, telemetry
        self._clock, self._event_log, self._metrics = clock, event_log, metrics
        self._news = threading.Event()
        self._log: PredictionLog | None = None  # until the past is read
        self._keys: dict[str, Key] = {}  # by uid, of the jobs in the log
        self._expected: Mapping[str, WhenExpected] = {}  # by uid
        self._offset_s = self._wall_offset()  # when these were made
        self._coming: tuple[float, Sequence[Occupancy]] = (0.0, ())  # as it was simulated at a time of `Clock.now`

    def run(self, stopping: threading.Event, acts: Callable[[], bool]) -> None:
        """Update until `stopping` is set and `wake` called, while this coordinator acts."""
        unlisten = self._event_log.listen(self.wake)
        while not stopping.is_set():
            self._news.wait(REFRESH_S)
            self._news.clear()
            began = time.thread_time()
            try:
                if acts() and not stopping.is_set():
                    self.update()
            except ReshapeError as error:
                log.info("no forecast now: %s", error)
            except Exception:  # one odd job must not end the thread
                log.exception("no forecast now")
            stopping.wait(max(PAUSE_S, (time.thread_time() - began) / SHARE))
        unlisten()

    def wake(self) -> None:
        self._news.set()

    def update(self) -> None:
        """Compare with what has come, then forecast from this moment on."""
        jobs, known = self._cache.jobs(), self._log or self._read()
        offset_s = self._wall_offset()
        if abs(offset_s - self._offset_s) > SET_S:
            known.forget_all()
        self._settle(known, {job.uid: job for job in jobs.values()})
        wall, expected = self._clock.wall(), dict[str, WhenExpected]()
        estimates, ago_s = self._loop.expected_times()
        for simulated, found in ((True, self._simulated(len(jobs))), (False, self._estimated(estimates, ago_s))):
            for one in found:
                job = jobs.get(one.job_id)
                doubt = one.guess or estimates.get(one.job_id, UNKNOWN).guess
                if job is not None and not doubt and job.uid not in expected and job.state not in s.ENDED:
                    started = bool(job.doc.get("start_ts"))
                    expected[job.uid] = known.add_forecast(job.uid, one, wall, started, simulated)
        open_ = {job.uid: job.key for job in jobs.values()}
        self._keys = {uid: open_.get(uid, self._keys.get(uid)) for uid in known.jobs}
        self._expected = expected
        self._offset_s = offset_s

    def _wall_offset(self) -> float:
        """Return by how much the wall clock is ahead of the one that is never set."""
        return self._clock.wall() - self._clock.now()

    def _simulated(self, count: int) -> Sequence[JobForecast]:
        if count > MOST:
            self._coming = (0.0, ())
            return ()
        now = self._clock.now()
        until = time.thread_time() + BUDGET_S
        found = forecast(self.live(), lambda: time.thread_time() < until)
        self._coming = (now, found.held)
        return found.jobs

    def _estimated(self, estimates: Mapping[str, ExpectedTimes], ago_s: float) -> Iterator[JobForecast]:
        """What was expected `ago_s` seconds ago if nothing is reshaped."""
        jobs, profiles = self._cache.jobs(), self._loop.profiles
        for name, found in estimates.items():
            overheads = profiles.overheads(jobs[name].job_type if name in jobs else "")
            start, end = (None if t is None else max(0.0, t - ago_s) for t in (found.start_s, found.end_s))
            yield JobForecast(name, start, end, 0.0, None, found.guess, overheads.k8s_init + overheads.proc_init)

    def forecast_of_job(self, job: JobRecord) -> WhenExpected:
        """When the job starts and ends by the newest forecast, as far as that is to come."""
        found, wall = self._expected.get(job.uid, WhenExpected()), self._clock.wall()
        start = found.start if job.state == s.SUBMITTED else None
        end = None if job.state in s.ENDED or job.held or job.stalled or job.idle_in_stop else found.end
        set_s = self._wall_offset() - self._offset_s  # ahead, since it was made
        return WhenExpected(_to_come(start, set_s, wall), _to_come(end, set_s, wall))

    def coming(self) -> list[tuple[str, str, float, float]]:
        """Return which job is predicted to hold which GPU: GPU, job, begin and end in seconds since 1970.

        Empty where there are too many jobs to simulate.
        """
        made, held = self._coming
        wall = made + self._wall_offset()
        return [(one.gpu, one.job, wall + one.begin_s, wall + one.end_s) for one in held]

    def present(self) -> Present:
        snapshot, now = self._loop.present()
        jobs = self._cache.jobs().values()
        silent_s = {job.id: self._telemetry.reports.silent_s(job) for job in jobs if job.state == s.RUNNING}
        held = frozenset(job.id for job in jobs if job.state == s.SUBMITTED and is_held(job))
        return Present(snapshot, now, silent_s, held, self._loop.config.reshape_by == "relaunch")

    def live(self) -> LiveState:
        """What is simulated of this moment: all but jobs on CPU and those that wait for something else."""
        at, settings = self.present(), self._loop.settings
        left_out = tuple(job.id for job in at.snapshot.jobs if job.uses_cpu or job.id in at.held)
        world = replace(at.snapshot, jobs=tuple(job for job in at.snapshot.jobs if job.id not in {*left_out}))
        return LiveState(world, settings, at.relaunches, left_out).as_of(at.now, at.silent_s)

    def _read(self) -> PredictionLog:
        """Learn from what predecessors wrote."""
        self._log = known = PredictionLog()
        for row in sorted(self._store.list(PREDICTIONS), key=lambda row: number(row.get("at")) or 0.0):
            known.read(row)
        return known

    def _settle(self, known: PredictionLog, open_: Mapping[str, JobRecord]) -> None:
        """Learn from the jobs that have ended; forget those that an operator holds, which is no matter of time."""
        for uid in known.jobs:
            job = open_.get(uid) or self._ended(uid)
            if job is not None and job.state == s.COMPLETED:
                self._completed(known, job)
            elif job is None or job.state in s.ENDED or is_held(job):
                known.forget_job(uid)

    def _ended(self, uid: str) -> JobRecord | None:
        doc = self._store.get("jobs", self._keys.get(uid))
        return JobRecord(doc) if doc is not None and doc.get("uid") == uid else None

    def _completed(self, known: PredictionLog, job: JobRecord) -> None:
        started = number(job.doc.get("start_ts")) or job.finish_ts
        outcomes = known.completed(job.uid, started, job.finish_ts)
        for one in outcomes:
            self._metrics.came(one.prediction.kind, one.verdict)
        rows = [one.row() for one in outcomes]
        self._store.put(PREDICTIONS, {"_id": job.uid, "job_id": job.raw_id, "at": job.finish_ts, "outcomes": rows})


def _to_come(interval: Interval | None, set_s: float, wall: float) -> Interval | None:
    """Return what of an interval is to come, by a wall clock that was set ahead by `set_s` seconds meanwhile."""
    moved = None if interval is None else interval.moved_by(set_s)
    return None if moved is None or moved.latest <= wall else moved.not_before(wall)
