"""Judges what one caller may find, see and change of the coordinator's jobs.

Promises: only the owner of a job and administrators, on a cluster those with rights in its namespace, change it and
read its output, code, words and progress; others see its name, owner, state and counts, or nothing of it
(`RESHAPE_OTHERS_SEEN=0`). Every service of `coordinator.api.services.UserServices` asks here.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Self

from adaptive_scheduler.rights.standing import Standings
from adaptive_scheduler.shares import Shares
from coordinator.api.decided import missing
from coordinator.api.ended_jobs import EndedJobs
from coordinator.caller import Caller, JobRight
from coordinator.config import Config
from coordinator.errors import Rejected
from coordinator.events.event_log import EventLog
from coordinator.model.events import UserAsked
from coordinator.model.owner_names import owner_of_job
from coordinator.model.records import JobRecord
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache

View = dict[str, Any]

NAMING = (
    "message",
    "because",
    "receipt",
    "binds",
    "starts_if",
    "start_guesses",
    "yields_to",
    "warnings",
    "problems",
    "sentence",
    "jobs",
    "victim",
    "more_victims",
    "unchanged_guesses",
    "for",
    "reshape",
)
"""Fields of jobs, decisions and events in which other jobs are named."""
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9_-]|[A-Za-z0-9]")
LONG_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@:/#+=~-]*[A-Za-z0-9_@/#+=~-]")
"""Such as the name of a service account."""
ANOTHERS_JOB = "another user's job"
ANOTHER_USER = "another user"


class Access:
    """Thread-safe. Without a caller, as for the holder of the coordinator's token, everything is allowed."""

    def __init__(self, cache: Cache, ended: EndedJobs, event_log: EventLog, loop: DecisionLoop, config: Config) -> None:
        self.caller: Caller | None = None
        self._cache = cache
        self._ended = ended
        self._known_users = KnownUsers(loop)
        self._event_log = event_log
        self._loop = loop
        self._config = config

    def of_caller(self, caller: Caller) -> Access:
        """Return the access of one user."""
        restricted = copy.copy(self)
        restricted.caller = caller
        return restricted

    @property
    def sees_all(self) -> bool:
        """Return whether names and counts of all users' jobs are shown to the caller."""
        return self.caller is None or self.caller.admin or self.caller.others_seen

    @property
    def is_admin(self) -> bool:
        """Return whether the caller may read everything of all users' jobs."""
        return self.caller is None or self.caller.admin

    @property
    def who(self) -> str:
        """Return the subject of a sentence that says who asked for something."""
        return f"User {self.caller.name}" if self.caller is not None else "An operator"

    def require_admin(self, what: str) -> None:
        """Refuse what concerns all users. `what`: such as `close a node`."""
        if self.caller is not None:
            self.caller.require_admin(what)

    # one job

    def find(self, job_id: str) -> JobRecord:
        """Find the newest job of that name; `Rejected` with status 404 if there is none. Judges nothing."""
        job = self._cache.find(job_id)
        if job is None:
            raise self.missing(job_id)
        return job

    def missing(self, job_id: str) -> Rejected:
        """Return the answer about a job that is not in the store, or that the caller may know nothing of."""
        return missing(job_id, self._config.keep)

    def find_seen(self, job_id: str) -> JobRecord:
        """Find a job that the caller may know of; `Rejected` with status 404 for others."""
        job = self.find(job_id)
        if not self.sees(job):
            raise self.missing(job_id)
        return job

    def find_own(self, job_id: str, right: JobRight) -> JobRecord:
        """Find a job for those with a right to it; `Rejected` with status 403 for others.

        Whoever changes a job goes on with this very record, by compare-and-set: its name may be another user's job at
        the next look.
        """
        job = self.find(job_id)
        if self.caller is not None:
            if not self.caller.sees(job):
                raise self.missing(job_id)
            self.caller.require(right, job)
        return job

    def find_operated(self, job_id: str, right: JobRight = "change") -> JobRecord:
        """Find a job for what operators of its queue may, too: hold, release, cancel, reprioritise."""
        job = self.find(job_id)
        return job if self.operates(job) else self.find_own(job_id, right)

    def find_ended(self, job_id: str, right: JobRight) -> JobRecord:
        """Find the newest job of that name; `Rejected` with status 409 while it has not ended."""
        job = self.find_own(job_id, right)
        if not job.doc.get("closed"):
            raise Rejected(f"Job {job_id} has not ended: cancel it first, or wait until it has let everything go.", 409)
        return job

    def operates(self, job: JobRecord) -> bool:
        """Return whether the caller is an operator of the queue that the job is in."""
        if self.caller is None:
            return False
        shares = self._loop.queue_shares.shares
        return self.caller.name in shares.queue(shares.queue_of(*self.named_owner(job))).operators

    def named_owner(self, job: JobRecord) -> tuple[str, str]:
        """Return the queue and the user that a job names."""
        return str(job.doc.get("queue") or ""), owner_of_job(job.doc, self._config.default_owner)

    def sees(self, job: JobRecord) -> bool:
        """Return whether the caller may know that there is this job."""
        return self.caller is None or self.caller.sees(job) or self.operates(job)

    def hides(self, job: JobRecord) -> bool:
        """Return whether the caller may know no more of this job than its name, state and counts."""
        return self.caller is not None and not self.caller.has("read", job)

    def is_own(self, job_id: str, at: float = math.inf) -> bool:
        """Return whether the caller may read the newest job of that name, and it had been submitted by then."""
        job = self._cache.find(job_id)
        return job is not None and not self.hides(job) and job.submit_ts <= at

    # words about jobs

    def without_names(self, view: View, others: Collection[str] = ()) -> View:
        """Leave out the names of others' jobs that stand in words about an own one, where those are not to be seen.

        `others`: names that are known to be such, as of jobs that were removed long ago.
        """
        if self.sees_all:
            return view

        def shown(word: str) -> str:
            return ANOTHERS_JOB if word in others else self._shown_word(word)

        return view | {field: _with_words(view[field], shown) for field in NAMING if field in view}

    def without_names_in(self, value: Any) -> Any:
        """Return a text, or the texts in a value, with other words for jobs and users that the caller may not know."""
        return value if self.sees_all else _with_words(value, self._shown_word)

    @contextmanager
    def nameless_refusals(self, *, of_jobs: bool) -> Iterator[None]:
        """Refuse with the same words, but for users that the caller may not know, and for jobs if `of_jobs`."""
        try:
            yield
        except Rejected as refused:
            if self.sees_all:
                raise
            shown = self._shown_word if of_jobs else self.shown_user
            problems = tuple(map(str, _with_words(refused.problems, shown)))
            raise Rejected(str(_with_words(str(refused), shown)), refused.status, problems) from None

    def shown_user(self, word: str) -> str:
        """Return a word of a sentence, or others where it names a user that the caller may not know."""
        is_own = self.caller is None or self.caller.name == word
        return ANOTHER_USER if not is_own and self._known_users.has(word) else word

    def _shown_word(self, word: str) -> str:
        """Return a word of a sentence, or others where it names a job or a user that the caller may not know."""
        job = self._cache.job(word) or self._ended.named(word)
        if job is not None:
            return word if self.sees(job) else ANOTHERS_JOB
        return self.shown_user(word)

    # what was done

    def note_change(self, verb: str, about: str, job_id: str | None = None) -> None:
        """Append an event that says who has changed what. `job_id`: of the job that it is about."""
        if self.caller is not None:
            asked = UserAsked(self.caller.name, verb, about)
            job = None if job_id is None else self._cache.find(job_id)
            self._event_log.append({"job_id": job_id, **self.caller.event_marks(job), **asked.public()})


class KnownUsers:
    """Remembers all users' names until standings or shares change: they are asked for at each word of a sentence."""

    def __init__(self, loop: DecisionLoop) -> None:
        self._loop = loop
        self._read: tuple[Standings | None, Shares, frozenset[str]] | None = None  # the names, and what they are from

    def has(self, name: str) -> bool:
        """Return whether somebody of that name has jobs, use, shares or a reservation."""
        return name in self._names() or any(row.get("user") == name for row in self._loop.reservations)

    def _names(self) -> frozenset[str]:
        """Return the users with jobs, with use that still counts, and those whom `shares.yaml` names."""
        shares = self._loop.queue_shares.shares
        standings = self._loop.accounts.standings
        if self._read is not None and self._read[0] is standings and self._read[1] is shares:
            return self._read[2]
        found = {owner.user for owner in (standings.owners if standings is not None else ())}
        found.update(owner.user for owner in self._loop.accounts.use)
        found.update(shares.users)
        for queue in shares.queues.values():
            found.update(queue.users, queue.operators)
        names = frozenset(found - {""})
        self._read = standings, shares, names
        return names


def _with_words(value: Any, shown: Callable[[str], str]) -> Any:
    """Return a text, or the texts in a value, with what `shown` says for each word, else for each of its parts."""
    match value:
        case str():
            return LONG_WORD.sub(lambda found: _shown_for(found[0], shown), value)
        case list() | tuple():
            return [_with_words(part, shown) for part in value]
        case dict():
            return {field: _with_words(part, shown) for field, part in value.items()}
    return value


def _shown_for(word: str, shown: Callable[[str], str]) -> str:
    whole = shown(word)
    return whole if whole != word else WORD.sub(lambda found: shown(found[0]), word)


class UserService:
    """Base of the services that users call. Each of its public methods judges whether its caller may."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def of_access(self, access: Access) -> Self:
        """Return the same service for another caller."""
        restricted = copy.copy(self)
        restricted.access = access
        return restricted

    @property
    def _caller(self) -> Caller | None:
        return self.access.caller
