"""Jobs that wait until others are completed: the field `depends_on` of a job document, a list of job ids. Pure.

Promises: a job with it is not in the queue until all of these are completed, which is then written down in
`depends_met`; where one of them ended otherwise it fails with a sentence that names it. `coordinator.depending` looks,
`picture` keeps those that wait out of the queue, intake asks `problems`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coordinator.core import states as s
from coordinator.core.records import JobRecord, show, whole

MOST = 4_096  # jobs that one may wait for
NAMED = 3  # that a sentence names


class Judgement(NamedTuple):
    """At most one of the two; neither: it may start."""

    waits: str = ""
    fails: str = ""


def named(doc: Mapping[str, Any]) -> tuple[str, ...]:
    """The jobs that it waits for, by their ids."""
    given = doc.get("depends_on")
    return tuple(str(one) for one in given) if isinstance(given, list) else ()


def is_open(job: JobRecord) -> bool:
    """Whether it is still to be seen that these are completed."""
    return bool(named(job.doc)) and not job.doc.get("depends_met")


def problems(doc: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the field, as a sentence that says what to write."""
    given = doc.get("depends_on")
    if given is None:
        return
    if not isinstance(given, list) or len(given) > MOST or not all(isinstance(o, str) or whole(o, 0) for o in given):
        yield f'depends_on must be a list of at most {MOST} job ids such as ["prepare"], not {show(given)}'
    elif str(doc.get("job_id", doc.get("_id"))) in named(doc):
        yield "depends_on names the job itself: take that out"


def judge(job: JobRecord, states: Mapping[str, str | None]) -> Judgement:
    """By the state of each job that it waits for; None: nobody knows such a job.

    A job that was never there may still be inserted. One of the same Slaml was there, so somebody has deleted it.
    """
    ended = {one: states.get(one) for one in named(job.doc)}
    for one, state in ended.items():
        gone = state is None and bool(job.doc.get("slaml"))
        if gone or state in (s.FAILED, s.CANCELLED):
            how = "was deleted" if gone else "has failed" if state == s.FAILED else "was cancelled"
            return Judgement(fails=f"job {one}, which had to be completed before it, {how}")
    left = [one for one, state in ended.items() if state != s.COMPLETED]
    if not left:
        return Judgement()
    unknown = [one for one in left if ended[one] is None]
    more = f"; nobody knows {_listed(unknown)} yet" if unknown else ""
    return Judgement(waits=f"{job.id} waits until {_listed(left)} {'is' if len(left) == 1 else 'are'} completed{more}.")


def _listed(ids: list[str]) -> str:
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return ", ".join(ids[:NAMED]) + more
