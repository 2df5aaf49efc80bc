"""Holds jobs back until the jobs in their `depends_on` field, a list of ids, are completed.

Promises: the job is not queued until all of them are completed, which `depends_met` then records; if one of them ends
otherwise, the job fails with a sentence that names it; one that waits for itself, by way of others, says so, and so
does one that waits for a job that was refused. `DependencyController` checks, `SnapshotBuilder` keeps waiting
jobs out of the queue, intake calls `problems`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from adaptive_scheduler.decision import Explanation, Hold
from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.events import JobFailed, RecordEvent
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobChanges, JobRow
from coordinator.ports import Clock
from coordinator.scheduling import dependency_circles
from coordinator.scheduling.dependency_circles import Circle
from coordinator.stores.cache import Cache
from coordinator.telemetry.changed_jobs import Picked

ALGORITHM = "depends_on"
MAX_NAMED = 3  # job ids in a sentence
REFUSED = "refused"  # stands for the state of a job whose document was refused
AGAIN = "Cancel these jobs, and submit them again without the circle."


class DependencyVerdict(NamedTuple):
    """At most one of the two sentences; neither: the job may start."""

    waits: str = ""
    fails: str = ""


def dependency_ids(doc: JobRow) -> tuple[str, ...]:
    """Ids of the jobs that it depends on."""
    given = doc.get("depends_on")
    return tuple(str(one) for one in given) if isinstance(given, list) else ()


def is_waiting(job: JobRecord) -> bool:
    """True if its dependencies are not yet known to be completed."""
    return bool(dependency_ids(job.doc)) and not job.doc.get("depends_met")


def problems(doc: JobRow) -> Iterator[str]:
    """Yield a sentence for a job that depends on itself."""
    if str(doc.get("job_id", doc.get("_id"))) in dependency_ids(doc):
        yield "depends_on names the job itself: take that out"


def circle_problem(job_id: str, of: Callable[[str], Collection[str]]) -> str:
    """Why this job may not be submitted: it would wait for itself. Empty if it would not. `of`: ids that each one
    waits for, also this one."""
    circle = dependency_circles.closed_by(job_id, of)
    if not circle:
        return ""
    told = dependency_circles.describe(circle)
    return f"depends_on closes a circle, in which no job can ever start: {told}; leave one of these out"


def evaluate(job: JobRecord, states: Mapping[str, str | None], circle: Circle = ()) -> DependencyVerdict:
    """Evaluate its dependencies by the state of each; None: there is no such job.

    A missing job may still be inserted, except one of the same Slaml, which was there and has been deleted. `circle`:
    jobs that wait for each other, of which it is one or for which it waits.
    """
    ended = {one: states.get(one) for one in dependency_ids(job.doc)}
    for one, state in ended.items():
        gone = state is None and bool(job.doc.get("slaml"))
        if gone or state in (s.FAILED, s.CANCELLED):
            how = "was deleted" if gone else "has failed" if state == s.FAILED else "was cancelled"
            return DependencyVerdict(fails=f"job {one}, which had to be completed before it, {how}")
    left = [one for one, state in ended.items() if state != s.COMPLETED]
    if not left:
        return DependencyVerdict()
    if job.id in circle:
        told = dependency_circles.describe(circle)
        return DependencyVerdict(waits=f"{job.id} is in a circle, in which no job can ever start: {told}. {AGAIN}")
    unknown = [one for one in left if ended[one] is None]
    refused = [one for one in left if ended[one] == REFUSED]
    more = f"; there is no {_listed(unknown)} yet" if unknown else ""
    more += f"; {_listed(refused)} {_is_are(refused, 'was', 'were')} refused: correct that first" if refused else ""
    if circle:
        more += f", which never happens: {dependency_circles.describe(circle)}. {AGAIN[:-1]}"
    return DependencyVerdict(waits=f"{job.id} waits until {_listed(left)} {_is_are(left)} completed{more}.")


def _is_are(ids: list[str], one: str = "is", several: str = "are") -> str:
    return one if len(ids) == 1 else several


def _listed(ids: list[str]) -> str:
    more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    return ", ".join(ids[:MAX_NAMED]) + more


class DependencyController:
    """Checks the dependencies of all waiting jobs at each cycle."""

    def __init__(self, cache: Cache, clock: Clock, record: RecordEvent) -> None:
        self._cache, self._clock, self._record = cache, clock, record
        self._waiting = Picked(lambda job: job.state == s.SUBMITTED and is_waiting(job))
        self._ended: dict[str, str] = {}  # final states of jobs that others depend on
        self._others: dict[str, str | None] = {}  # states of jobs not accepted or missing, as last read

    def sync(self, read: bool = True) -> list[Hold]:
        """Release or fail jobs; returns a `Hold` for each that waits. `read`: look up jobs outside the cache again."""
        waiting = self._waiting.from_jobs(self._cache.jobs()).values()
        wanted = {one for job in waiting for one in dependency_ids(job.doc)}
        self._ended = {one: state for one, state in self._ended.items() if one in wanted}
        self._others = {} if read else self._others
        states = {one: self._state(one) for one in sorted(wanted)}
        circles = dependency_circles.standing_still({job.id: dependency_ids(job.doc) for job in waiting})
        verdicts = [(job, evaluate(job, states, circles.get(job.id, ()))) for job in waiting]
        return [hold for job, verdict in verdicts for hold in self._look(job, verdict)]

    def _look(self, job: JobRecord, found: DependencyVerdict) -> Iterator[Hold]:
        if found.waits:
            yield Hold(job.id, Explanation(ALGORITHM, found.waits))
            return
        with suppress(Conflict):
            if found.fails:
                changes: JobChanges = {"state": s.FAILED, "message": found.fails, "finish_ts": self._clock.wall()}
                self._record(self._cache.write_job(job, changes, "fail"), JobFailed(found.fails))
            else:
                self._cache.write_job(job, {"depends_met": True}, "depends")

    def _state(self, job_id: str) -> str | None:
        if (job := self._cache.job(job_id)) is not None:
            self._ended.pop(job_id, None)  # of an earlier job of this id
            return job.state
        if job_id not in self._ended and job_id not in self._others:
            found = self._cache.find(job_id)
            if found is not None and found.state in s.ENDED:
                self._ended[job_id] = found.state
            else:
                refused = found is not None and not found.uid and bool(found.doc.get("problems"))
                # It may still be inserted or corrected.
                self._others[job_id] = None if found is None else REFUSED if refused else found.state
        return self._ended.get(job_id) or self._others.get(job_id)
