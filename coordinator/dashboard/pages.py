"""Makes the dashboard's pages: reads from the coordinator, shapes rows and pictures, fills templates.

A page is a handful of parts, pieces of HTML with an id each; an open page is sent only those that have changed
(`coordinator/http/dashboard/live.py`). Parts are the same for all who look, so they hold nothing of a session.
Everything that users wrote is escaped: templates do so unless told otherwise. May be called from any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tornado.template import Loader

from coordinator.dashboard import rows, words
from coordinator.dashboard.rows import Colours
from coordinator.errors import Rejected

View = dict[str, Any]
Query = Mapping[str, str]
Moment = Callable[[float], str]

TEMPLATES = Path(__file__).with_name("templates")
JOBS_PER_PAGE = 200
NODES_PER_PAGE = 50
GROUPS = {"running": "Running", "waiting": "Waiting", "ended": "Ended", "refused": "Not accepted"}
TABS = (("/", "Fleet"), ("/jobs", "Jobs"))


class PageSource(Protocol):
    """Operations of the coordinator that pages read; they raise only `coordinator.errors`."""

    def jobs_page(self, group: str, named: str, offset: int, limit: int) -> View:
        """`jobs`: views of one page of a group (running, waiting, ended, refused); `total` of the group, `counts`.

        Only jobs whose id holds `named`.
        """
        ...

    def job_states(self, job_ids: Iterable[str]) -> dict[str, str]:
        """States of those of the jobs that are open."""
        ...

    def job(self, job_id: str) -> View:
        """`Rejected` with status 404 if there is none; so do all methods that take a `job_id`."""
        ...

    def logs(self, job_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        """Return at most `limit` bytes of the job's output from byte `offset`, and the offset after them."""
        ...

    def gpus(self) -> list[View]: ...

    def nodes(self) -> list[View]: ...

    def decisions(self, job_id: str | None, limit: int) -> list[View]:
        """Return the newest decisions, newest first."""
        ...

    def decision(self, decision_id: str) -> View: ...

    def events_after(self, seq: int, limit: int) -> list[View]:
        """Oldest first; each has an integer `_id` greater than `seq` and a `type`."""
        ...

    def last_event(self) -> int: ...


@dataclass(frozen=True)
class Page:
    """What one address shows. `parts`: HTML by id, in the order to show it."""

    title: str
    tab: str  # the address under which the navigation has it
    parts: Mapping[str, str]
    job_id: str = ""  # of the page of one job

    @cached_property
    def version(self) -> str:
        """The same for the same contents."""
        return hashlib.sha256("\0".join(self.parts.values()).encode()).hexdigest()[:16]


class Pages:
    """`page` makes the one of an address; `html` fills any template."""

    def __init__(self, moment: Moment) -> None:
        """`moment` formats seconds since 1970."""
        self._templates = Loader(str(TEMPLATES), whitespace="oneline")
        self._colours, self._moment = Colours(), moment

    def html(self, template: str, **values: Any) -> str:
        known = {"words": words, "moment": self._moment, "job_href": job_href, "colour": self._colours.of}
        return self._templates.load(template).generate(**known, **values).decode()

    def page(self, source: PageSource, address: str) -> Page:
        """`address`: path and query. `Rejected` with status 404 if there is no such page."""
        split = urlsplit(address)
        query = dict(parse_qsl(split.query))
        match split.path.split("/"):
            case ["", ""]:
                return self._fleet(source, query)
            case ["", "jobs"]:
                return self._jobs(source, query)
            case ["", "jobs", job_id] if job_id:
                return self._job(source, unquote(job_id))
        raise Rejected("There is no page at this address.", 404)

    def _fleet(self, source: PageSource, query: Query) -> Page:
        gpus, nodes = source.gpus(), source.nodes()
        shown = Slice.of(query, len(nodes), NODES_PER_PAGE)
        states = source.job_states({user for gpu in gpus if (user := rows.user_of(gpu)) is not None})
        fleet = rows.fleet(gpus, nodes[shown.first : shown.end], states)
        turn = self.html("turn.html", shown=shown, what="nodes", link=lambda page: f"/?page={page}")
        counts = source.jobs_page("running", "", 0, 0)["counts"]
        parts = {
            "summary": self.html("summary.html", gpus=rows.gpu_counts(gpus), total=len(gpus), counts=counts),
            "fleet": self.html("fleet.html", fleet=fleet, turn=turn),
        }
        return Page("Fleet", "/", parts)

    def _jobs(self, source: PageSource, query: Query) -> Page:
        group, named = query.get("show", "running"), query.get("named", "").strip()
        offset = JOBS_PER_PAGE * (_number(query) - 1)
        found = source.jobs_page(group, named, offset, JOBS_PER_PAGE)
        shown = Slice.of(query, found["total"], JOBS_PER_PAGE)

        def link(page: int = 1, show: str = group) -> str:
            return "/jobs?" + urlencode({"show": show, **({"named": named} if named else {}), "page": page})

        turn = self.html("turn.html", shown=shown, what="jobs", link=link)
        about: View = {"group": group, "groups": GROUPS, "counts": found["counts"], "link": link, "named": named}
        parts = {
            "groups": self.html("groups.html", **about),
            "jobs": self.html("jobs.html", rows=[rows.job(v, self._moment) for v in found["jobs"]], turn=turn, **about),
        }
        return Page("Jobs", "/jobs", parts)

    def _job(self, source: PageSource, job_id: str) -> Page:
        view = source.job(job_id)
        parts = {"facts": self.html("facts.html", view=view, facts=words.facts(view, self._moment))}
        return Page(f"Job {job_id}", "/jobs", parts, job_id)


@dataclass(frozen=True)
class Slice:
    """One page of a long list: items from `first` to before `end`, of `total`."""

    page: int
    first: int
    end: int
    total: int

    @classmethod
    def of(cls, query: Query, total: int, size: int) -> Slice:
        page = _number(query)
        first = min(size * (page - 1), total)
        return cls(page, first, min(first + size, total), total)


def _number(query: Query) -> int:
    """The page that a query names; the first one if it names none."""
    text = query.get("page", "")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def job_href(job_id: Any) -> str:
    """The address of a job's page."""
    return f"/jobs/{quote(str(job_id), safe='')}"
