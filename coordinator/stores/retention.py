"""Removes what the store holds of the past beyond what `Keep` says: ended jobs, documents that were refused, decisions,
events, observations, predictions, accounts of GPU-hours, reservations that are over.

Promises: nothing is removed that a job which has not ended, a dependency, a Slaml or a Volcano Job still needs. A pass
that was killed is simply done again. Called by the coordinator once an hour and by `reshape store compact`, also beside
a coordinator. What is removed is chosen by pure functions; a row that changed since it was looked at stays.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from coordinator.config import Keep
from coordinator.model import states as s
from coordinator.model.document_validation import is_closed
from coordinator.model.records import JobRecord, number
from coordinator.ports import Clock, Doc, Store

HOUR_S = 3600.0
FRESH_S = 3600.0  # a job that ended less than this ago stays, since somebody may wait for its end
OF_EACH_JOB = 100  # newest decisions about a job that has not ended, which stay
NEWEST_EVENTS = 5_000  # stay: clients read on from them, and their numbers go on from the last one
PREDICTIONS = 1_000  # completed jobs of which is kept what was predicted of them
OVER = 1_000  # reservations that are over and stay for now: by a clock that was set right again, they may not be
PART = 1_000  # events that are looked at together
CLOCK = "clock"  # the row of `terms` that says how the clocks went
JUMP_S, STEADY_S = 60.0, 86_400.0  # by which the clocks may part between two looks; for which they must not
DOUBTED = 20  # newest spans of time that are remembered as a clock's that was set again within `STEADY_S`
NO_AGE_S = 1e12  # nothing is so old
JOB_FIELDS = (
    "job_id",
    "uid",
    "closed",
    "finish_ts",
    "submit_ts",
    "problems",
    "state",
    "depends_on",
    "slaml",
    "origin",
    "reshape",
    "wish_id",
    "sized_by",
)


Span = tuple[float, float]


@dataclass(frozen=True)
class Removed:
    """Numbers of removed rows."""

    jobs: int
    decisions: int
    events: int
    observations: int
    predictions: int
    accounts: int
    reservations: int

    def __str__(self) -> str:
        found = [(getattr(self, field.name), field.name) for field in fields(self)]
        return ", ".join(f"{count:,} {name}" for count, name in found)


@dataclass(frozen=True)
class Past:
    """The jobs of the store as a pass has found them."""

    open: Mapping[str, JobRecord]  # by id: those not closed, accepted or not looked at yet
    ended: Mapping[Any, JobRecord]  # by key
    refused: Mapping[Any, JobRecord]  # by key: those that intake refused, and that nobody has mended
    slamls: frozenset[str]  # uids

    @classmethod
    def from_rows(cls, rows: Iterable[Doc], slamls: Iterable[Doc]) -> Past:
        jobs = [JobRecord(row) for row in rows if isinstance(row["_id"], Hashable)]  # no write finds others
        refused = {job.key: job for job in jobs if job.doc.get("problems") and not job.uid}
        return cls(
            {job.id: job for job in jobs if not is_closed(job.doc) and job.key not in refused},
            {job.key: job for job in jobs if is_closed(job.doc) and job.key not in refused},
            refused,
            frozenset(str(row["_id"]) for row in slamls),
        )


class ClockWatch:
    """Says whether the wall clock is to be trusted with the age of what would be removed for good.

    One that was set a month ahead would make all ended jobs too old, and times that were written by it prove nothing.
    So it is trusted once it has run beside the boot clock for a day. How long it has is written into the store, so that
    the next process goes on from there. Over a boot of the machine, or on another one, that stands if the wall clock
    has gone on by less than a day. If it was set again sooner, what it had said until then is doubted for good: a
    machine that starts years back would else lose the job that ended before somebody noticed.
    """

    def __init__(self, clock: Clock, store: Store, boot: str) -> None:
        """`boot`: names the time since this machine was booted."""
        self._clock = clock
        self._store = store
        self._boot = boot

    def steady(self) -> bool:
        """True if ages count now. Ask each time before something is removed."""
        return self._beside_s(self._last_look(), self._clock.wall(), self._clock.now()) > STEADY_S

    def look(self) -> None:
        """Write down how the clocks go. To be called often, by the process that acts."""
        wall = self._clock.wall()
        now = self._clock.now()
        last = self._last_look()
        beside_s = self._beside_s(last, wall, now)
        began = number(last.get("began"))
        doubted = _doubted_spans(last)
        if beside_s == 0.0 or began is None:
            doubted = [*doubted, *_short_span(last)][-DOUBTED:]
            began = wall
        spans = [list(span) for span in doubted]
        told = {"wall": wall, "now": now, "beside_s": beside_s, "began": began, "doubted": spans}
        row = {"_id": CLOCK, "boot": self._boot, **told}
        self._store.put("terms", row)

    def doubted(self) -> list[Span]:
        """Return the spans of time, in seconds since 1970, by which nothing is to be dated."""
        return _doubted_spans(self._last_look())

    def _last_look(self) -> Doc:
        return self._store.get("terms", CLOCK) or {}

    def _beside_s(self, row: Doc, wall: float, now: float) -> float:
        """Return for how long the clocks have gone together until now, by what was written at the last look."""
        was_wall, was_now, beside_s = (number(row.get(field)) for field in ("wall", "now", "beside_s"))
        if was_wall is None or was_now is None or beside_s is None:
            return 0.0
        on_s = wall - was_wall
        ran_s = now - was_now
        if row.get("boot") == self._boot:
            return beside_s + ran_s if ran_s >= 0.0 and abs(on_s - ran_s) <= JUMP_S else 0.0
        return beside_s if -JUMP_S <= on_s < STEADY_S else 0.0


def _doubted_spans(row: Doc) -> list[Span]:
    pairs = (one for one in _listed(row.get("doubted")) if isinstance(one, list) and len(one) == 2)
    known = ((number(since), number(until)) for since, until in pairs)
    return [(since, until) for since, until in known if since is not None and until is not None]


def _short_span(row: Doc) -> Iterator[Span]:
    """Yield the span of time that a clock has shown, if it was set before it had been `STEADY_S` right."""
    began, wall, beside_s = (number(row.get(field)) for field in ("began", "wall", "beside_s"))
    if began is not None and wall is not None and beside_s is not None and beside_s <= STEADY_S:
        yield began - JUMP_S, wall + JUMP_S


def prune(store: Store, keep: Keep, wall: float, ages: bool = True, doubted: Sequence[Span] = ()) -> Removed:
    """Remove what is too old or too much, and return how much that was. `ages`: whether to count what is too old.

    Of jobs that ended in a span that is `doubted` the number alone decides.
    """
    keep = keep if ages else replace(keep, jobs_s=NO_AGE_S, events_s=NO_AGE_S, usage_s=NO_AGE_S)
    past = Past.from_rows(store.scan("jobs", JOB_FIELDS), store.scan("slamls", ()))
    jobs = set(jobs_to_remove(past, keep, wall, doubted))
    rows = [row for row in store.scan("decisions", ("job_id", "jobs", "at")) if isinstance(row["_id"], Hashable)]
    decisions = store.remove("decisions", list(decisions_to_remove(rows, past, jobs, keep, wall)))
    known, predicted = list(store.scan("observations", ("at",))), list(store.scan("predictions", ("at",)))
    refused = store.remove("jobs", list(refused_to_remove(past, keep, wall)), {"uid": None})
    reserved = store.scan("reservations", ("until_ts",))
    return Removed(
        jobs=store.remove("jobs", list(jobs), {"closed": True}) + refused,
        decisions=decisions,
        events=_remove_events(store, keep, wall),
        observations=store.remove("observations", [row["_id"] for row in _oldest(known, keep.observations)]),
        predictions=store.remove("predictions", [row["_id"] for row in _oldest(predicted, PREDICTIONS)]),
        accounts=store.remove("usage", list(_accounts_to_remove(store.scan("usage", ("hour",)), keep, wall))),
        reservations=store.remove("reservations", list(_reservations_to_remove(reserved, wall, ages))),
    )


def jobs_to_remove(past: Past, keep: Keep, wall: float, doubted: Sequence[Span] = ()) -> Iterator[Any]:
    """Keys of ended jobs that are too old, or beyond the newest `keep.jobs`, and that nothing needs any more."""
    wait = (*past.open.values(), *past.refused.values())
    needed = {str(one) for job in wait for one in _listed(job.doc.get("depends_on"))}
    newest = sorted(past.ended.values(), key=lambda job: (-job.finish_ts, str(job.key)))
    for place, job in enumerate(newest):
        dated = job.finish_ts and not any(since <= job.finish_ts <= until for since, until in doubted)
        age_s = wall - job.finish_ts if dated else FRESH_S  # of one without a time the number decides
        # Its Volcano Job may still be there, and a document that is missing would be made again: only age counts.
        crowded = place >= keep.jobs and age_s >= FRESH_S and job.doc.get("origin") != "volcano"
        if (age_s > max(keep.jobs_s, FRESH_S) or crowded) and job.id not in needed and _slaml(job) not in past.slamls:
            yield job.key


def refused_to_remove(past: Past, keep: Keep, wall: float) -> Iterator[Any]:
    """Keys of documents that were refused too long ago, or are beyond the newest `keep.jobs` of these."""
    for place, job in enumerate(sorted(past.refused.values(), key=lambda job: (-job.submit_ts, str(job.key)))):
        age_s = wall - job.submit_ts if job.submit_ts else FRESH_S
        if age_s > max(keep.jobs_s, FRESH_S) or (place >= keep.jobs and age_s >= FRESH_S):
            yield job.key


def decisions_to_remove(rows: list[Doc], past: Past, jobs: set[Any], keep: Keep, wall: float) -> Iterator[Any]:
    """Keys of decisions about removed jobs alone, too old ones, and those beyond the newest `keep.decisions`."""
    kept = [*past.open.values(), *(job for key, job in past.ended.items() if key not in jobs)]
    named = {name for job in kept for name in (_operation(job), job.doc.get("wish_id"), job.doc.get("sized_by"))}
    removed = {past.ended[key].id for key in jobs} - {job.id for job in kept}
    counts = dict.fromkeys(past.open, 0)
    for place, row in enumerate(sorted(rows, key=_at, reverse=True)):
        about = {str(one) for one in (row.get("job_id"), *_listed(row.get("jobs"))) if one is not None}
        alive = about & counts.keys()
        lately = any(counts[job] < OF_EACH_JOB for job in alive)
        for job in alive:
            counts[job] += 1
        if lately or row["_id"] in named:
            continue
        if place >= keep.decisions or wall - _at(row)[0] > keep.jobs_s or about <= removed:
            yield row["_id"]


def _remove_events(store: Store, keep: Keep, wall: float) -> int:
    """Remove the oldest events, page by page; those to be kept are not read, except for one page."""
    removed, last = 0, store.last_event()
    while page := store.events_after(0, PART):
        old = [row["_id"] for row in page if row["_id"] <= last - NEWEST_EVENTS and _too_old(row, keep, last, wall)]
        removed += store.remove("events", old)
        if len(old) < len(page):
            break
    return removed


def _too_old(event: Doc, keep: Keep, last: int, wall: float) -> bool:
    return event["_id"] <= last - keep.events or wall - _at(event)[0] > keep.events_s


def _oldest(rows: list[Doc], count: int) -> list[Doc]:
    """All rows but the newest `count`; those without a time, which were imported, count as the newest."""
    timed = sorted((row for row in rows if number(row.get("at")) is not None), key=_at, reverse=True)
    return timed[max(0, count - (len(rows) - len(timed))) :]


def _accounts_to_remove(rows: Iterable[Doc], keep: Keep, wall: float) -> Iterator[Any]:
    """Keys of accounts of hours that are too long ago. What was used lately is of no hour, and stays."""
    for row in rows:
        hour = number(row.get("hour"))
        if hour is not None and wall - hour * HOUR_S > keep.usage_s:
            yield row["_id"]


def _reservations_to_remove(rows: Iterable[Doc], wall: float, ages: bool) -> Iterator[Any]:
    """Keys of reservations that were over an hour ago, or are beyond the newest `OVER` of those that are over."""
    over = [(until, row["_id"]) for row in rows if (until := number(row.get("until_ts"))) is not None and until <= wall]
    for place, (until, key) in enumerate(sorted(over, key=lambda one: one[0], reverse=True)):
        if place >= OVER or (ages and wall - until > FRESH_S):
            yield key


def _at(row: Doc) -> tuple[float, str]:
    return number(row.get("at")) or 0.0, str(row["_id"])


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _slaml(job: JobRecord) -> str:
    slaml = job.doc.get("slaml")
    return str(slaml.get("uid")) if isinstance(slaml, dict) else ""


def _operation(job: JobRecord) -> str | None:
    return job.operation.decision if job.operation and job.state not in s.ENDED else None
