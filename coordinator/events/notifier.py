"""Tells webhooks and a command of the ends and missed deadlines of jobs, each once, in a thread of its own.

What is still to be told stands in the job's row (`told`), so that the next coordinator tells it. Only one that is
killed between the telling and the note of it leads to a second one, with the same `id`. A recipient that does not
answer is tried `TRIES` times and then given up; neither harms the job.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from coordinator.config import Config
from coordinator.errors import Conflict, Fatal, ReshapeError
from coordinator.model import notices
from coordinator.model.events import JobEvent, NoticeFailed, NoticeSent, RecordEvent
from coordinator.model.notices import Recipient
from coordinator.model.records import JobRecord
from coordinator.ports import Clock, Store, moment_of
from coordinator.stores.cache import Cache
from coordinator.webhooks import is_webhook

log = logging.getLogger(__name__)

TRIES = 4
PAUSE_S = 5.0  # before the second try; four times as long before each further one
LOOK_S = 1.0  # between two looks what is due
WRITES = 20  # of a row that keeps changing
WAITS = "waits"
TOLD = "told"
GIVEN_UP = "given up"

Send = Callable[[Recipient, dict[str, Any]], None]
"""Tells one recipient; `Transient` if it is worth another try, `Fatal` if not, with why and without a secret."""


class _Due(NamedTuple):
    """One telling; `number` keeps the order among equals."""

    at: float
    number: int
    key: Any  # of the job's row
    uid: str
    kind: str
    recipient: Recipient
    tries: int


class Notifier:
    """`heard` may be called from any thread; all else runs in that of `run`."""

    def __init__(
        self, store: Store, cache: Cache, clock: Clock, config: Config, record: RecordEvent, send: Send
    ) -> None:
        self._store = store
        self._cache = cache
        self._clock = clock
        self._config = config
        self._record = record
        self._send = send
        self._lock = threading.Lock()
        self._due: list[_Due] = []
        self._known: set[tuple[str, str, str]] = set()  # uid, kind and recipient of all that is due
        self._count = 0

    def recipients(self, job: JobRecord) -> list[Recipient]:
        """Return who is told of this job."""
        own = job.doc.get("notify")
        found = list[Recipient]()
        if self._config.notify_jobs and is_webhook(own):
            found.append(Recipient("job", str(own)))
        if self._config.notify:
            found.append(Recipient("all", self._config.notify))
        if self._config.notify_command:
            found.append(Recipient("command", self._config.notify_command))
        return found

    def heard(self, job: JobRecord, event: JobEvent) -> None:
        """Take an event of which somebody is to be told. An end is noted in the row before that is closed."""
        kind = notices.kind_of(event)
        if not kind or not job.accepted:
            return
        noted = _outcomes(job.doc.get("told"))
        recipients = [one for one in self.recipients(job) if _outcome_key(kind, one) not in noted]
        if recipients and kind != notices.MISSED:  # that one is due by `missed_ts` for as long as it is not told
            with suppress(ReshapeError):
                self._note_outcome(job.key, job.uid, {_outcome_key(kind, one): WAITS for one in recipients})
        for recipient in recipients:
            self._enqueue(job, kind, recipient)

    def begin(self) -> None:
        """Find all that another coordinator has left to be told."""
        with self._lock:
            self._due.clear()
            self._known.clear()
        for job, kind, recipient in self._left_untold():
            self._enqueue(job, kind, recipient)

    def _left_untold(self) -> Iterator[tuple[JobRecord, str, Recipient]]:
        closed = self._store.scan("jobs", ("closed", "told"))
        waiting = [
            row["_id"] for row in closed if row.get("closed") is True and WAITS in _outcomes(row.get("told")).values()
        ]
        docs = [*self._store.list("jobs", {"closed": False}), *(self._store.get("jobs", key) for key in waiting)]
        for job in (JobRecord(doc) for doc in docs if doc is not None):
            told = _outcomes(job.doc.get("told"))
            for kind in notices.due_kinds(job):
                for recipient in self.recipients(job):
                    outcome = told.get(_outcome_key(kind, recipient))
                    if outcome == WAITS or (outcome is None and job.doc.get("closed") is not True):
                        yield job, kind, recipient

    def _enqueue(self, job: JobRecord, kind: str, recipient: Recipient, tries: int = 0, pause_s: float = 0.0) -> None:
        with self._lock:
            name = (job.uid, kind, recipient.whose)
            if tries == 0 and name in self._known:
                return
            self._known.add(name)
            self._count += 1
            at = self._clock.now() + pause_s
            heapq.heappush(self._due, _Due(at, self._count, job.key, job.uid, kind, recipient, tries))

    def run(self, stopping: threading.Event, leads: Callable[[], bool]) -> None:
        """Tell what is due until `stopping` is set, while this coordinator leads."""
        led = False
        while not stopping.wait(LOOK_S):
            if not leads():
                led = False
                continue
            try:
                if not led:
                    self.begin()
                    led = True
                self.tell_due(lambda: stopping.is_set() or not leads())
            except ReshapeError as error:
                log.info("nobody is told of ended jobs now: %s", error)
            except Exception:  # one odd row must not end the thread
                log.exception("nobody is told of ended jobs now")

    def tell_due(self, ends: Callable[[], bool] = lambda: False) -> None:
        """Tell all that is due now, one after the other, until `ends` holds."""
        while not ends() and (due := self._pop_due()) is not None:
            try:
                self._tell_recipient(due)
            except ReshapeError:  # of the store: it waits, and so does this
                self._postpone(due)
                raise

    def _pop_due(self) -> _Due | None:
        with self._lock:
            return heapq.heappop(self._due) if self._due and self._due[0].at <= self._clock.now() else None

    def _postpone(self, due: _Due) -> None:
        with self._lock:
            heapq.heappush(self._due, due._replace(at=self._clock.now() + PAUSE_S))

    def _tell_recipient(self, due: _Due) -> None:
        doc = self._store.get("jobs", due.key)
        if doc is None or doc.get("uid") != due.uid:
            self._forget_due(due)
            return
        job = JobRecord(doc)
        said = due.recipient.shown
        about = notices.payload(job, due.kind, moment_of(self._clock))
        try:
            self._send(due.recipient, about)
        except ReshapeError as error:
            if due.tries + 1 < TRIES and not isinstance(error, Fatal):
                self._enqueue(job, due.kind, due.recipient, due.tries + 1, PAUSE_S * 4**due.tries)
                log.info("%s was not told of job %s: %s; it is tried again", said, job.id, error)
                return
            self._note_outcome(due.key, due.uid, {_outcome_key(due.kind, due.recipient): GIVEN_UP})
            tries = f", after {due.tries + 1} tries" if due.tries else ""
            event: JobEvent = NoticeFailed(f"{said} was not told that {_describe_event(job, due.kind)}: {error}{tries}")
        else:
            self._note_outcome(due.key, due.uid, {_outcome_key(due.kind, due.recipient): TOLD})
            event = NoticeSent(f"{said} was told that {_describe_event(job, due.kind)}")
        self._forget_due(due)
        self._record(job, event)

    def _forget_due(self, due: _Due) -> None:
        with self._lock:
            self._known.discard((due.uid, due.kind, due.recipient.whose))

    def _note_outcome(self, key: Any, uid: str, outcome: dict[str, str]) -> None:
        """Write into the row what became of it; the cache keeps those that are open."""
        for _ in range(WRITES):
            doc = self._store.get("jobs", key)
            if doc is None or doc.get("uid") != uid:
                return
            job = JobRecord(doc)
            told = _outcomes(doc.get("told")) | outcome
            with suppress(Conflict):
                if doc.get("closed") is True:
                    self._store.update("jobs", key, {"version": doc.get("version")}, {"told": told})
                else:
                    self._cache.write_job(job, {"told": told}, "told")
                return


def _outcomes(told: object) -> dict[str, Any]:
    """Return what became of each telling, by `_outcome_key`; empty if the row does not say."""
    return dict(told) if isinstance(told, dict) else {}


def _outcome_key(kind: str, recipient: Recipient) -> str:
    return f"{kind}-{recipient.whose}"


def _describe_event(job: JobRecord, kind: str) -> str:
    return f"{job.id} has missed its deadline" if kind == notices.MISSED else f"{job.id} {notices.WORDS[kind]}"
