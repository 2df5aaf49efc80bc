"""Makes the dashboard's pages: reads from the coordinator, shapes rows and pictures, fills templates.

A page is a handful of parts, pieces of HTML with an id each; an open page is sent only those that have changed
(`coordinator/http/dashboard/live.py`). Parts are the same for all who look, so they hold nothing of a session.
Everything that users wrote is escaped: templates do so unless told otherwise. May be called from any thread.
"""

from __future__ import annotations

import hashlib
import math
import re
from calendar import timegm
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import strptime
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tornado.escape import xhtml_escape
from tornado.template import Loader

from coordinator.dashboard import pictures, rows, words
from coordinator.dashboard.curve_picture import curve_picture
from coordinator.dashboard.day_of_use import use_of_a_day
from coordinator.dashboard.gantt import MOST_ROWS, gantt
from coordinator.dashboard.rows import Colours
from coordinator.errors import Rejected, ReshapeError

View = dict[str, Any]
Query = Mapping[str, str]
Moment = Callable[[float], str]

CODE = re.compile(r"`([^`\n]+)`")
TEMPLATES = Path(__file__).with_name("templates")
CURVE_STYLE = Path(__file__).parent / "static" / "curve.css"  # of pages, and of a picture that stands alone
JOBS_PER_PAGE = 200
NODES_PER_PAGE = 50
NODES_ON_MAP = 250
QUEUE_READ, QUEUE_SHOWN, LATEST_SHOWN = 100, 8, 6  # beside the fleet: jobs that wait, decisions
IN_HEAD = {"job", "state", "owner", "progress", "starts", "ends"}  # facts that the head of a job's page tells
GROUPS = {"running": "Running", "waiting": "Waiting", "ended": "Ended", "refused": "Not accepted"}
GPUS_PER_PAGE = 64  # in the timeline
AHEAD = 0.5  # of the time that the timeline shows, as much of the forecast
DECISIONS_PER_PAGE = 40
LONG = 30 * 1024  # letters of output, from which its first line may be a part of one
LATEST = 12  # decisions on the page of a job
EVENTS = 60  # there, too
# Time that the timeline shows.
SHORTEST_S = 10.0
LONGEST_S = 7 * 86400.0
TIME = "%Y-%m-%d %H:%M:%S"
WINDOWS = {"10": "10 minutes", "60": "an hour", "360": "6 hours", "1440": "a day"}
TABS = (
    ("/", "Fleet"),
    ("/timeline", "Timeline"),
    ("/jobs", "Jobs"),
    ("/decisions", "Decisions"),
    ("/what-if", "What if"),
    ("/submit", "New job"),
)


class JobsShown(Protocol):
    """Jobs, as `coordinator.api.job_reads.JobReads` has them; `Rejected` with status 404 if there is no such job."""

    def jobs_page(self, group: str, named: str, offset: int, limit: int) -> View:
        """`jobs`: views of one page of a group (running, waiting, ended, refused); `total` of the group, `counts`.

        Only jobs whose id or owner holds `named`.
        """
        ...

    def open_jobs(self, job_ids: Iterable[str]) -> dict[str, View]:
        """Return of those jobs that are open `state`, `owner`, and `start_ts` in seconds since 1970 or None."""
        ...

    def job(self, job_id: str) -> View: ...

    def curve(self, job_id: str) -> View:
        """Return how it trained. `values`: (iterations, value) of what it has measured of itself, `value_name`;
        `speeds`: (iterations, seconds per iteration); `gpus`: (iterations, GPUs from there on)."""
        ...


class OutputShown(Protocol):
    """Reads what trainings wrote."""

    def log_tail(self, job_id: str) -> bytes:
        """Return the end of the job's output."""
        ...


class FleetShown(Protocol):
    """GPUs and nodes."""

    def gpus(self) -> list[View]: ...

    def nodes(self) -> list[View]: ...

    def coming(self) -> list[tuple[str, str, float, float]]:
        """Return which job is predicted to hold which GPU: GPU, job, begin and end in seconds since 1970."""
        ...

    def gpu_use(self) -> View:
        """Return what GPUs did in the last 24 hours, up to `until`, in seconds since 1970.

        `quarters`: of each quarter of an hour, the oldest first, its `begin` and GPU-seconds: `there_s` of all GPUs
        while a coordinator watched, `held_s` by jobs, `measured_s` in which was measured how busy they were, and
        `busy_s` of that. `nodes`: the last two by node.
        """
        ...


class HistoryShown(Protocol):
    """Events and decisions."""

    def newest_events(self) -> list[View]:
        """Return the newest events, oldest first; each has an integer `_id`, a time `at` and a `type`."""
        ...

    def decided(self, offset: int, limit: int) -> tuple[list[View], bool]:
        """Return decisions, newest first, and whether there are more."""
        ...

    def decisions(self, job_id: str | None, limit: int) -> list[View]:
        """Return the newest decisions, newest first."""
        ...


class StatusShown(Protocol):
    """Tells the state of the coordinator itself."""

    def wall(self) -> float:
        """Return seconds since 1970, as events have them."""
        ...

    def health(self) -> View:
        """Return whether all is `ok`, and a `sentence` about it."""
        ...


class PageSource(Protocol):
    """The services that pages read, a part of `coordinator.api.services.UserServices`."""

    @property
    def jobs(self) -> JobsShown: ...

    @property
    def output(self) -> OutputShown: ...

    @property
    def fleet(self) -> FleetShown: ...

    @property
    def history(self) -> HistoryShown: ...

    @property
    def status(self) -> StatusShown: ...


@dataclass(frozen=True)
class Page:
    """What one address shows. `parts`: HTML by id, in the order to show it."""

    title: str
    tab: str  # the address under which the navigation has it
    parts: Mapping[str, str]
    job: View | None = None  # of the page of one job
    nodes: Sequence[View] = ()  # that a form of the page offers
    aside: Sequence[str] = ()  # parts that stand beside those of `beside` where there is room
    beside: Sequence[str] = ()

    @cached_property
    def version(self) -> str:
        """The same for the same contents."""
        return hashlib.sha256("\0".join(self.parts.values()).encode()).hexdigest()[:16]


class Pages:
    """`page` makes the one of an address; `html` fills any template."""

    def __init__(self, time_in_zone: Callable[[str], Moment]) -> None:
        """`time_in_zone` returns what formats seconds since 1970 in a zone; that of this machine for an empty name."""
        self._templates = Loader(str(TEMPLATES), whitespace="oneline")
        self._colours = Colours()
        self._time_in_zone = time_in_zone
        self._moment = time_in_zone("")

    def in_zone(self, zone: str) -> Pages:
        """Return the same pages with all times in this zone."""
        if not zone:
            return self
        pages = copy(self)
        pages._moment = self._time_in_zone(zone)
        return pages

    def html(self, template: str, **values: Any) -> str:
        links = {"job_href": job_href, "decision_href": decision_href, "coded": coded, "unbroken": rows.unbroken}
        known = {"words": words, "moment": self._moment, "colour": self._colours.class_of_job, **links}
        return self._templates.load(template).generate(**known, **values).decode()

    def page(self, source: PageSource, address: str) -> Page:
        """`address`: path and query. `Rejected` with status 404 if there is no such page."""
        page = self._page_at(source, address)
        trouble = self.html("trouble.html", health=source.status.health())
        return replace(page, parts={"trouble": trouble, **page.parts})

    def _page_at(self, source: PageSource, address: str) -> Page:
        split = urlsplit(address)
        query = dict(parse_qsl(split.query))
        match split.path.split("/"):
            case ["", ""]:
                return self._fleet(source, query)
            case ["", "jobs"]:
                return self._jobs(source, query)
            case ["", "jobs", job_id] if job_id:
                return self._job(source, unquote(job_id))
            case ["", "timeline"]:
                return self._timeline(source, query)
            case ["", "decisions"]:
                return self._decisions(source, query)
            case ["", "submit"]:
                return Page("New job", "/submit", {}, nodes=source.fleet.nodes())
            case ["", "what-if"]:
                return Page(
                    "What if", "/what-if", {"about": self.html("what_if/about.html")}, nodes=source.fleet.nodes()
                )
        raise Rejected("There is no page at this address.", 404)

    def _fleet(self, source: PageSource, query: Query) -> Page:
        gpus = source.fleet.gpus()
        now = source.status.wall()
        nodes = sorted(source.fleet.nodes(), key=lambda node: rows.natural_order(str(node["node"])))
        is_map = len(nodes) > rows.DETAILED_NODES
        shown = Slice.from_query(query, len(nodes), NODES_ON_MAP if is_map else NODES_PER_PAGE)
        users = {user for gpu in gpus if (user := rows.user_of(gpu)) is not None}
        fleet = rows.fleet(gpus, nodes[shown.first : shown.end], source.jobs.open_jobs(users), self._since)
        turn = self.html("turn.html", shown=shown, what="nodes", link=lambda page: f"/?page={page}")
        waiting = source.jobs.jobs_page("waiting", "", 0, QUEUE_READ)
        queue = sorted(waiting["jobs"], key=lambda view: _number_or_last(view.get("start_in_s")))[:QUEUE_SHOWN]
        shaped = [rows.job(view, self._moment, now, _largest(nodes)) for view in queue]
        latest, _ = source.history.decided(0, LATEST_SHOWN)
        use = use_of_a_day(source.fleet.gpu_use(), source.history.newest_events(), gpus)
        parts = {
            "summary": self.html(
                "summary.html",
                gpus=rows.gpu_counts(gpus),
                by_type=rows.idle_by_type(gpus),
                total=len(gpus),
                counts=waiting["counts"],
            ),
            "fleet": self.html("fleet/map.html" if is_map else "fleet/tiles.html", fleet=fleet, use=use)
            + self.html("fleet/table.html", fleet=fleet, turn=turn, is_map=is_map),
            "use": self.html("fleet/use.html", use=use, clock=self._since, emulated=any(n["emulated"] for n in nodes)),
            "queue": self.html("fleet/queue.html", rows=shaped, total=waiting["total"]),
            "latest": self.html("fleet/latest.html", decisions=latest, clock=self._clock_time),
        }
        return Page(
            "Fleet",
            "/",
            parts,
            nodes=nodes[shown.first : shown.end],
            beside=("fleet", "use"),
            aside=("queue", "latest"),
        )

    def _jobs(self, source: PageSource, query: Query) -> Page:
        group, named = query.get("show", "running"), query.get("named", "").strip()
        offset = JOBS_PER_PAGE * (_number(query) - 1)
        found = source.jobs.jobs_page(group, named, offset, JOBS_PER_PAGE)
        shown = Slice.from_query(query, found["total"], JOBS_PER_PAGE)

        def link(page: int = 1, show: str = group) -> str:
            return "/jobs?" + urlencode({"show": show, **({"named": named} if named else {}), "page": page})

        turn = self.html("turn.html", shown=shown, what="jobs", link=link)
        largest = _largest(source.fleet.nodes())
        now = source.status.wall()
        shaped = [rows.job(view, self._moment, now, largest) for view in found["jobs"]]
        about: View = {"group": group, "groups": GROUPS, "counts": found["counts"], "link": link, "named": named}
        parts = {
            "groups": self.html("groups.html", **about),
            "jobs": self.html("jobs.html", rows=shaped, turn=turn, **about),
        }
        return Page("Jobs", "/jobs", parts)

    def _job(self, source: PageSource, job_id: str) -> Page:
        view = source.jobs.job(job_id)
        history = source.history.newest_events()
        now = source.status.wall()
        begin = view.get("start_ts") or view.get("submit_ts") or now
        begin, end = self._window(history, view.get("finish_ts") or now, now - begin)
        window = pictures.Window(begin, end, end, ahead_s=self._ahead_s(now))
        picture = pictures.timeline(history, source.fleet.gpus(), window, self._clock_time, job=job_id)
        own = [event for event in history if str(event.get("job_id")) == job_id and event["type"] != "gpu"]
        curve = source.jobs.curve(job_id)
        parts = {
            "head": self.html("job/head.html", view=view, now=now),
            "facts": self.html("job/facts.html", view=view, facts=self._facts_below_head(view, now)),
            "growth": self._drawn("job/curve.html", curve),
            "gpus": self.html("timeline.html", picture=picture, title="Its GPUs over time", zooms=False),
            "output": self.html("job/output.html", job_id=job_id),
            "log": self.html("job/log.html", text=_tail(source, job_id)),
            "decisions": self.html(
                "decisions.html",
                decisions=source.history.decisions(job_id, LATEST),
                title="Decisions",
                of_job=job_id,
            ),
            "events": self.html("job/events.html", groups=rows.event_groups(own[-EVENTS:])),
        }
        return Page(f"Job {job_id}", "/jobs", parts, view)

    def _facts_below_head(self, view: View, now: float) -> dict[str, str]:
        """Return what is known of a job besides what the head of its page says."""
        known = words.facts(view, self._moment, now)
        return {
            name: fact for name, fact in known.items() if name not in IN_HEAD and (name, fact) != ("message", "trains")
        }

    def curve_picture(self, curve: View) -> str:
        """Return how a training went as an SVG. `curve`: as `PageSource.curve` returns it."""
        return self._drawn("job/curve_alone.html", curve, CURVE_STYLE.read_text("utf-8"))

    def _drawn(self, template: str, curve: View, style: str = "") -> str:
        about = f"Value and speed of job {curve['job_id']} by iterations, and the GPUs that it had"
        picture = curve_picture(curve)
        return self.html(template, picture=picture, curve=curve, about=about, style=style, alone=bool(style))

    def what_if_opening(self, source: PageSource) -> str:
        """Return what the page shows before anything is asked: when jobs run as things stand."""
        now = source.status.wall()
        held: dict[str, tuple[float, float]] = {}
        for _, job, begin, end in source.fleet.coming():
            first, last = held.get(job, (begin, end))
            held[job] = (min(first, begin), max(last, end))
        in_order = sorted(held.items(), key=lambda one: (max(now, one[1][0]), rows.natural_order(one[0])))
        times = [
            {"job_id": job, "now": [max(0.0, begin - now), max(0.0, end - now)], "then": None}
            for job, (begin, end) in in_order
        ]
        return self.html(
            "what_if/opening.html",
            picture=gantt(times),
            left_out=max(0, len(times) - MOST_ROWS),
            counts=source.jobs.jobs_page("running", "", 0, 1)["counts"],
        )

    def _timeline(self, source: PageSource, query: Query) -> Page:
        history = source.history.newest_events()
        now = source.status.wall()
        gpus = sorted(source.fleet.gpus(), key=lambda gpu: rows.natural_order(str(gpu["node"])))
        known = float(history[0]["at"]) if history else now
        last = query["last"] if query.get("last") in WINDOWS else "10" if now - known < 600 else "60"
        window = self._chosen_window(source, query, now)
        is_chosen = window is not None
        if window is None:
            length = 60.0 * int(last)
            end = _stepped(now, length)
            window = self._window_of_time(source, end - length, end + length * AHEAD, now)
        shown = Slice.from_query(query, len(gpus), GPUS_PER_PAGE)
        picture = pictures.timeline(history, gpus[shown.first : shown.end], window, self._clock_time)

        def link(page: int = 1, minutes: str = last) -> str:
            return "/timeline?" + urlencode({"last": minutes, "page": page})

        def between(begin: float, end: float, page: int = 1) -> str:
            return "/timeline?" + urlencode({"from": f"{begin:.0f}", "until": f"{end:.0f}", "page": page})

        def turned(page: int) -> str:
            return between(window.begin, window.end, page) if is_chosen else link(page)

        turn = self.html("turn.html", shown=shown, what="GPUs", link=turned)
        half = window.span / 2
        quarter = window.span / 4
        parts = {
            "windows": self.html(
                "windows.html",
                link=link,
                earlier=between(window.begin - half, window.end - half) if window.begin > known else "",
                later=between(window.begin + half, window.end + half) if window.end < now else "",
                closer=between(window.begin + quarter, window.end - quarter) if half >= SHORTEST_S else "",
                wider=between(window.begin - half, window.end + half) if 2 * window.span <= LONGEST_S else "",
                windows=WINDOWS,
                minutes="" if is_chosen else last,
                is_fixed=is_chosen,
            ),
            "timeline": self.html("timeline.html", picture=picture, title="", zooms=True) + turn,
        }
        return Page("Timeline", "/timeline", parts)

    def _chosen_window(self, source: PageSource, query: Query, now: float) -> pictures.Window | None:
        """Return the time that a query names by its begin and end; None if it names none."""
        begin = _seconds(query.get("from"), 0.0)
        end = _seconds(query.get("until"), 0.0)
        if not begin or not SHORTEST_S <= end - begin <= LONGEST_S:
            return None
        return self._window_of_time(source, begin, end, now)

    def _window_of_time(self, source: PageSource, begin: float, end: float, now: float) -> pictures.Window:
        coming = source.fleet.coming() if end > now else ()
        return pictures.Window(begin, end, now, coming, self._ahead_s(now))

    def _ahead_s(self, at: float) -> float:
        """Return by how many seconds the reader's clocks are ahead of UTC."""
        try:
            return round(timegm(strptime(self._moment(at), TIME)) - at)
        except ValueError:  # no calendar has that day
            return 0.0

    def _decisions(self, source: PageSource, query: Query) -> Page:
        page = _number(query)
        found, more = source.history.decided(DECISIONS_PER_PAGE * (page - 1), DECISIONS_PER_PAGE)
        turn = self.html("onward.html", page=page, more=more)
        parts = {"decisions": self.html("decisions.html", decisions=found, title="", of_job="") + turn}
        return Page("Decisions", "/decisions", parts)

    @staticmethod
    def _window(history: list[View], until: float, length: float) -> tuple[float, float]:
        """Begin and end of a picture of this length. They move in steps, so that it stays the same for a while."""
        known = float(history[0]["at"]) if history else until
        length = max(10.0, min(length, until - known))
        step = length / 100
        end = step * math.ceil(until / step)
        return end - length, end

    def _since(self, at: float) -> str:
        """The time of a day without its seconds."""
        return self._clock_time(at).rpartition(":")[0]

    def _clock_time(self, at: float) -> str:
        return self._moment(at).rpartition(" ")[2]


@dataclass(frozen=True)
class Slice:
    """One page of a long list: items from `first` to before `end`, of `total`."""

    page: int
    first: int
    end: int
    total: int

    @classmethod
    def from_query(cls, query: Query, total: int, size: int) -> Slice:
        page = _number(query)
        first = min(size * (page - 1), total)
        return cls(page, first, min(first + size, total), total)


def _largest(nodes: Iterable[View]) -> int:
    """GPUs of the node that has most."""
    return max((node["gpus"] for node in nodes), default=0)


def what_if_examples(nodes: Sequence[View]) -> list[tuple[str, dict[str, str]]]:
    """Return questions for the what-if form: what to call each, and its fields."""
    with_gpus = sorted((node for node in nodes if node["gpus"]), key=lambda node: rows.natural_order(str(node["node"])))
    found: list[tuple[str, dict[str, str]]] = []
    if with_gpus:
        kind = str(with_gpus[0]["gpu_type"])
        found.append((f"2 more {kind}", {"count": "+2", "gpu_type": kind}))
    if len(with_gpus) > 1:
        last = str(with_gpus[-1]["node"])
        found.append((f"without node {last}", {"node": last}))
    found.append(("a new job on 1, 2 or 4 GPUs", {"new_gpus": "1,2,4", "new_iterations": "5000"}))
    found.append(("no reshaping (policy default)", {"policy": "default"}))
    return found


def _number_or_last(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.inf


def _stepped(at: float, length: float) -> float:
    """This time or a little later: it moves in steps, so that a picture stays the same for a while."""
    step = length / 200
    return step * math.ceil(at / step)


def _seconds(text: str | None, default: float) -> float:
    """A time in seconds since 1970 that a query names."""
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 12 else default


def _number(query: Query) -> int:
    """The page that a query names; the first one if it names none."""
    text = query.get("page", "")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def _tail(source: PageSource, job_id: str) -> str:
    """The end of a job's output, without a line that begins in the middle; a sentence where it cannot be read."""
    try:
        text = source.output.log_tail(job_id).decode("utf-8", "replace")
    except ReshapeError as error:
        return str(error)
    return text.partition("\n")[2] if len(text) > LONG else text


def coded(text: str) -> str:
    """Return a sentence as HTML, with what stands between backticks as code."""
    return CODE.sub(r"<code>\1</code>", xhtml_escape(text))


def job_href(job_id: Any) -> str:
    """The address of a job's page."""
    return f"/jobs/{quote(str(job_id), safe='')}"


def decision_href(decision_id: Any) -> str:
    """Return the address of a decision among the newest ones."""
    return f"/decisions#decision-{quote(str(decision_id), safe='')}"
