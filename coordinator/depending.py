"""Looks after jobs that wait for others (`core/dependencies.py`): lets them go, or fails them, in the books.

Called by the loop at each turn, before it decides. Jobs that have ended are read from the store once each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from adaptive_scheduler.decision import Explanation, Hold
from coordinator.books import Books
from coordinator.core import dependencies
from coordinator.core import states as s
from coordinator.core.records import JobRecord
from coordinator.errors import Conflict
from coordinator.ports import Clock

ALGORITHM = "depends_on"


class Depending:
    """`turn` answers why each of those that wait has to."""

    def __init__(self, books: Books, clock: Clock, told: Callable[[JobRecord, dict[str, Any]], None]) -> None:
        self._books, self._clock, self._told = books, clock, told
        self._ended: dict[str, str] = {}  # states that change no more, of jobs that somebody waits for
        self._others: dict[str, str | None] = {}  # of jobs that are not let in or not there, as last read

    def turn(self, read: bool = True) -> list[Hold]:
        """`read`: those of which the books say nothing again, too."""
        waiting = [j for j in self._books.jobs().values() if j.state == s.SUBMITTED and dependencies.is_open(j)]
        wanted = {one for job in waiting for one in dependencies.named(job.doc)}
        self._ended = {one: state for one, state in self._ended.items() if one in wanted}
        self._others = {} if read else self._others
        states = {one: self._state(one) for one in sorted(wanted)}
        return [hold for job in waiting for hold in self._look(job, dependencies.judge(job, states))]

    def _look(self, job: JobRecord, found: dependencies.Judgement) -> Iterator[Hold]:
        if found.waits:
            yield Hold(job.id, Explanation(ALGORITHM, found.waits))
            return
        with suppress(Conflict):
            if found.fails:
                changes = {"state": s.FAILED, "message": found.fails, "finish_ts": self._clock.wall()}
                self._told(self._books.write_job(job, changes, "fail"), {"type": "failed", "sentence": found.fails})
            else:
                self._books.write_job(job, {"depends_met": True}, "depends")

    def _state(self, job_id: str) -> str | None:
        if (job := self._books.job(job_id)) is not None:
            self._ended.pop(job_id, None)  # of one that had the name before
            return job.state
        if job_id not in self._ended and job_id not in self._others:
            found = self._books.find(job_id)
            if found is not None and found.state in s.ENDED:
                self._ended[job_id] = found.state
            else:
                self._others[job_id] = None if found is None else found.state  # it may still come, or be put right
        return self._ended.get(job_id) or self._others.get(job_id)
