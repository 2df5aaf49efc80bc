"""Jobs that wait until others are completed: the field `depends_on` of a job document, a list of job ids. Pure.

Promises: a job with it is not in the queue until all of these are completed, which is then written down in
`depends_met`; where one of them ended otherwise it fails with a sentence that names it. `DependencyController` looks,
`picture` keeps those that wait out of the queue, intake asks `problems`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from adaptive_scheduler.decision import Explanation, Hold
from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.events import JobFailed, RecordEvent
from coordinator.model.records import JobRecord, show, whole
from coordinator.model.tables import JobChanges, JobRow
from coordinator.ports import Clock
from coordinator.stores.cache import Cache

ALGORITHM = "depends_on"
MAX_DEPENDENCIES = 4_096  # jobs that one may wait for
MAX_NAMED = 3  # that a sentence names


class DependencyVerdict(NamedTuple):
    """At most one of the two; neither: it may start."""

    waits: str = ""
    fails: str = ""


def dependency_ids(doc: JobRow) -> tuple[str, ...]:
    """The jobs that it waits for, by their ids."""
    given = doc.get("depends_on")
    return tuple(str(one) for one in given) if isinstance(given, list) else ()


def is_waiting(job: JobRecord) -> bool:
    """Whether it is still to be seen that these are completed."""
    return bool(dependency_ids(job.doc)) and not job.doc.get("depends_met")


def problems(doc: JobRow) -> Iterator[str]:
    """What is wrong with the field, as a sentence that says what to write."""
    given = doc.get("depends_on")
    if given is None:
        return
    if (
        not isinstance(given, list)
        or len(given) > MAX_DEPENDENCIES
        or not all(isinstance(o, str) or whole(o, 0) for o in given)
    ):
        yield f'depends_on must be a list of at most {MAX_DEPENDENCIES} job ids such as ["prepare"], not {show(given)}'
    elif str(doc.get("job_id", doc.get("_id"))) in dependency_ids(doc):
        yield "depends_on names the job itself: take that out"


def evaluate(job: JobRecord, states: Mapping[str, str | None]) -> DependencyVerdict:
    """By the state of each job that it waits for; None: nobody knows such a job.

    A job that was never there may still be inserted. One of the same Slaml was there, so somebody has deleted it.
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
    unknown = [one for one in left if ended[one] is None]
    more = f"; nobody knows {_listed(unknown)} yet" if unknown else ""
    return DependencyVerdict(
        waits=f"{job.id} waits until {_listed(left)} {'is' if len(left) == 1 else 'are'} completed{more}."
    )


def _listed(ids: list[str]) -> str:
    more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    return ", ".join(ids[:MAX_NAMED]) + more


class DependencyController:
    """`turn` answers why each of those that wait has to."""

    def __init__(self, cache: Cache, clock: Clock, record: RecordEvent) -> None:
        self._cache, self._clock, self._record = cache, clock, record
        self._ended: dict[str, str] = {}  # states that change no more, of jobs that somebody waits for
        self._others: dict[str, str | None] = {}  # of jobs that are not let in or not there, as last read

    def sync(self, read: bool = True) -> list[Hold]:
        """`read`: those of which the books say nothing again, too."""
        waiting = [j for j in self._cache.jobs().values() if j.state == s.SUBMITTED and is_waiting(j)]
        wanted = {one for job in waiting for one in dependency_ids(job.doc)}
        self._ended = {one: state for one, state in self._ended.items() if one in wanted}
        self._others = {} if read else self._others
        states = {one: self._state(one) for one in sorted(wanted)}
        return [hold for job in waiting for hold in self._look(job, evaluate(job, states))]

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
            self._ended.pop(job_id, None)  # of one that had the name before
            return job.state
        if job_id not in self._ended and job_id not in self._others:
            found = self._cache.find(job_id)
            if found is not None and found.state in s.ENDED:
                self._ended[job_id] = found.state
            else:
                self._others[job_id] = None if found is None else found.state  # it may still come, or be put right
        return self._ended.get(job_id) or self._others.get(job_id)
