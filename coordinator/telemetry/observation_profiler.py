"""Adds a row to `observations` for each finished task: the Observation Profiler of Slaml.

The row holds what the task asked for, how long it trained, and what it used: as its own pods reported, and where a
Prometheus is configured as that measured. Prometheus is queried by a thread of its own, so that nothing waits for it;
a row that it has no figures for stays as it is. Called by `ingest.py`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial

from coordinator.errors import ReshapeError
from coordinator.model import requirements
from coordinator.model.records import JobRecord, number
from coordinator.ports import Clock, Doc, Measurements
from coordinator.telemetry.measured.measured_use import MeasuredUse
from coordinator.telemetry.profile_estimator import ProfileEstimator
from coordinator.telemetry.usage import Account
from sidecar.protocol import Heartbeat

MOST_WAITING = 1_000  # finished tasks to query Prometheus about; beyond it the pods' own figures stay
LOOK_S = 0.5

log = logging.getLogger(__name__)


class ObservationProfiler:
    """Thread-safe. `run` is the body of its thread, which has work only if `prometheus` is given."""

    def __init__(
        self, estimator: ProfileEstimator, clock: Clock, prometheus: Measurements | None, present: MeasuredUse
    ) -> None:
        self._estimator, self._clock, self._prometheus, self._present = estimator, clock, prometheus, present
        self._lock = threading.Lock()
        self._accounts: dict[str, Account] = {}  # by the uid of a job
        self._waiting: queue.Queue[tuple[JobRecord, Doc]] = queue.Queue(MOST_WAITING)
        self._answers = True  # whether Prometheus answered the last query

    def heard(self, job: JobRecord, beat: Heartbeat) -> None:
        with self._lock:
            self._accounts.setdefault(job.uid, Account()).heard(beat, self._clock.now())

    def finished(self, job: JobRecord) -> None:
        """Add the row of a finished job at once; Prometheus may improve it later."""
        self._present.forget_job(job)
        with self._lock:
            account = self._accounts.pop(job.uid, Account())
        row = observation(job, account.used())
        if row is None:
            return
        self._estimator.observed(row)
        if self._prometheus is not None:
            try:
                self._waiting.put_nowait((job, row))
            except queue.Full:
                log.warning("Prometheus is not asked about job %s: too many are waiting", job.id)

    def forget_job(self, job: JobRecord) -> None:
        self._present.forget_job(job)
        with self._lock:
            self._accounts.pop(job.uid, None)

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._ask("the load of nodes and the use of jobs stay as they report it", self._present.look)
            try:
                job, row = self._waiting.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            self._ask(f"the use of job {job.id} stays as its pods reported it", partial(self._improve, job, row))

    def _ask(self, without: str, query: Callable[[], bool]) -> None:
        """Make a query, which says whether there was one to make; if it fails, log what holds without an answer."""
        try:
            self._answers = query() or self._answers
        except ReshapeError as error:
            (log.info if not self._answers else log.warning)("%s: %s", without, error)
            self._answers = False
        except Exception as error:  # one odd answer must not end the thread
            log.exception("%s: %s", without, error)

    def _improve(self, job: JobRecord, row: Doc) -> bool:
        """Put into its row what Prometheus measured of the task's last pods."""
        if self._prometheus is None:
            return False
        if seen := self._prometheus.used(job.doc, row["at"] - row["execution_s"], row["at"]):
            self._estimator.observed({**row, **seen})
        return True


def observation(job: JobRecord, used: Doc) -> Doc | None:
    """The row of a finished task; None if it does not tell how long such a task takes (D11).

    A replica of a Slaml's task names that task first and then those after it. Any other job with several tasks runs
    them as one command, so the time of each is not known. A job that was stopped and resumed counts the time that it
    trained.
    """
    tasks, took_s, at = requirements.tasks(job.doc), number(job.doc.get("ran_s")), number(job.doc.get("finish_ts"))
    if not tasks or (len(tasks) > 1 and not job.doc.get("slaml")) or not took_s or at is None:
        return None
    task = tasks[0]
    asked = {"cores": task.cores, "memory": task.memory, "gpus": task.gpus}
    about = {"_id": job.uid, "job_id": job.raw_id, "task": task.name, "at": at, "node": job.node}
    return {**about, **asked, "execution_s": took_s, **used}
