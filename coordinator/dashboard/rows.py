"""Shapes what the API tells of GPUs, nodes and jobs into the cells of the dashboard's tables and pictures. Pure."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from coordinator.dashboard import words

View = Mapping[str, Any]

WIDEST_RUN = 16  # GPUs in one tile, for which static/dashboard.css has widths
FIRST_LETTERS, LETTERS = 9, 11  # of a name that fit on one GPU, and on each further one beside it
DETAILED_NODES = 5  # more are shown as a map of small squares
STEPS = {
    "decided",
    "launching",
    "scaling",
    "initialized",
    "granted",
    "start sent",
    "stop sent",
    "running",
    "renumbered",
    "removing",
    "removed",
    "adjusting",
    "told",
}  # events on the way to another one, which then says what came of them
HUES = 12  # in static/dashboard.css
REMEMBERED = 10_000  # jobs whose colour is kept
RUNNING = "running"
SUBMITTED = "submitted"
KEPT = "kept"  # by a reservation, for a user whose jobs do not need it now
NUMBERS = re.compile(r"([0-9]+)")


class Colours:
    """Gives each job one of `HUES` colours, the same on every page; neighbours in time differ. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: OrderedDict[str, int] = OrderedDict()
        self._count = 0

    def class_of_job(self, job_id: Any) -> str:
        """The class of the style sheet."""
        name = str(job_id)
        with self._lock:
            if name not in self._given:
                self._given[name] = self._count % HUES
                self._count += 1
            self._given.move_to_end(name)
            if len(self._given) > REMEMBERED:
                self._given.popitem(last=False)
            return f"c{self._given[name]}"


@dataclass(frozen=True)
class GpuCell:
    """One GPU in the picture of the fleet."""

    gpu: View
    kind: str  # in use, reserved, kept, idle, faulty
    job: str | None  # who uses it, or whom it is promised to
    mark: str  # what happens to it; empty while its job just trains

    @property
    def title(self) -> str:
        """All about it in one line."""
        gpu = self.gpu
        about = self.job or words.text(gpu.get("problem") or (f"kept {self.named}" if self.kind == KEPT else self.kind))
        busy = words.measured(gpu.get("utilisation"), "{:.0%} busy")
        return ", ".join(filter(None, (words.text(gpu.get("gpu_id")), about, self.mark, busy, words.memory(gpu))))

    @property
    def named(self) -> str:
        """Return its job; of one without a job what it is, or the user for whom a reservation keeps it."""
        return self.job or (f"for {self.gpu['kept_for']}" if self.kind == KEPT else self.kind)

    @property
    def busy(self) -> float | None:
        """The share of time that it is busy, from 0 to 1; None where nothing is known."""
        return _share(self.gpu.get("utilisation"), 1.0)

    @property
    def full(self) -> float | None:
        """The share of its memory that is used, likewise."""
        return _share(self.gpu.get("memory_used"), self.gpu.get("memory_total"))


def _share(part: Any, whole: Any) -> float | None:
    if not isinstance(part, int | float) or not isinstance(whole, int | float) or whole <= 0:
        return None
    return min(1.0, max(0.0, part / whole))


@dataclass(frozen=True)
class GpuRun:
    """GPUs beside one another that do the same: one tile. `about`: whose its job is, and since when it trains."""

    cells: tuple[GpuCell, ...]
    about: str

    @property
    def first(self) -> GpuCell:
        return self.cells[0]

    @property
    def label(self) -> str:
        """Return as much of the job's name as fits, cut in its middle."""
        count = f"{len(self.cells)} " if self.first.job is None and len(self.cells) > 1 else ""
        return count + words.middle_cut(self.first.named, FIRST_LETTERS + LETTERS * (len(self.cells) - 1))

    @property
    def title(self) -> str:
        """Return in lines what each GPU does."""
        return "\n".join(cell.title for cell in self.cells)


def user_of(gpu: View) -> str | None:
    """The job that has the GPU, or else the one that it is promised to."""
    user = gpu.get("held_by") if gpu.get("held_by") is not None else gpu.get("job_id")
    return None if user is None else str(user)


def gpu_cell(gpu: View, jobs: Mapping[str, View]) -> GpuCell:
    """`jobs`: those that have GPUs, with their `state`."""
    user, held = user_of(gpu), gpu.get("held_by") is not None
    if gpu.get("state") == "faulty":
        return GpuCell(gpu, "faulty", user, "")
    if user is None:
        return GpuCell(gpu, "idle" if gpu.get("kept_for") is None else KEPT, None, "")
    if not held:
        return GpuCell(gpu, "reserved", user, "reserved")
    if gpu.get("job_id") is not None and str(gpu["job_id"]) != user:
        return GpuCell(gpu, "in use", user, f"for {gpu['job_id']} next")
    state = jobs.get(user, {}).get("state", "ending")
    return GpuCell(gpu, "in use", user, "" if state == RUNNING else state)


@dataclass(frozen=True)
class NodeTiles:
    """Node with its GPUs, in the order of their numbers."""

    node: View
    cells: tuple[GpuCell, ...]
    runs: tuple[GpuRun, ...]


def fleet(
    gpus: Iterable[View], nodes: Iterable[View], jobs: Mapping[str, View], moment: Callable[[float], str]
) -> list[NodeTiles]:
    """Return each of the nodes with its GPUs, in order. `moment` formats seconds since 1970, shortly."""
    of_node: dict[Any, list[GpuCell]] = {node["node"]: [] for node in nodes}
    for gpu in gpus:
        if gpu["node"] in of_node:
            of_node[gpu["node"]].append(gpu_cell(gpu, jobs))
    return [NodeTiles(node, tuple(cells := of_node[node["node"]]), tuple(_runs(cells, jobs, moment))) for node in nodes]


def _runs(cells: Sequence[GpuCell], jobs: Mapping[str, View], moment: Callable[[float], str]) -> Iterator[GpuRun]:
    for (_, job, _, _), found in groupby(cells, key=lambda cell: (cell.kind, cell.job, cell.mark, cell.named)):
        same = tuple(found)
        for first in range(0, len(same), WIDEST_RUN):
            yield GpuRun(same[first : first + WIDEST_RUN], _about(jobs.get(job or "", {}), moment))


def _about(job: View, moment: Callable[[float], str]) -> str:
    """Return whose it is and since when, not for how long, so that a page changes only when something happens."""
    return " · ".join(filter(None, (job.get("owner"), words.measured(job.get("start_ts"), moment))))


def natural_order(name: str) -> list[int | str]:
    """A key to sort names by: `n2` before `n10`."""
    return [int(part) if number % 2 else part for number, part in enumerate(NUMBERS.split(name))]


def idle_by_type(gpus: Sequence[View]) -> str:
    """Say how many GPUs of each type are idle; empty where there is one type only."""
    idle: Counter[str] = Counter({str(gpu.get("gpu_type")): 0 for gpu in gpus})
    idle.update(str(gpu.get("gpu_type")) for gpu in gpus if gpu_cell(gpu, {}).kind == "idle")
    return ", ".join(f"{count} {kind}" for kind, count in sorted(idle.items())) if len(idle) > 1 else ""


def gpu_counts(gpus: Sequence[View]) -> Counter[str]:
    """GPUs by kind of their cell."""
    return Counter(gpu_cell(gpu, {}).kind for gpu in gpus)


@dataclass(frozen=True)
class JobRow:
    """One job in a table."""

    job_id: str
    owner: str
    state: str
    gpus: str
    allowed: str
    node: str
    progress: str
    percent: int | None
    time: str  # for how long it ran; of an open job since when it runs, or waits
    time_key: float
    when: str
    waits: str  # when it is expected to start or end, or else why nobody knows
    at: float  # the same as a number to sort by: seconds from now, or since 1970 of an ended one
    alarm: str  # that it is late, or can never start: the remark is shown in red
    remark: str


def job(view: View, moment: Callable[[float], str], now: float, largest: int) -> JobRow:
    """`largest`: GPUs of the largest node."""
    done, total = view.get("iters_done") or 0, view.get("iterations")
    never = words.never_starts(view, largest)
    late = words.missed(view)
    allowed = words.joined(view.get("optional_num_gpus"), "", ", ")
    when = _when(view, moment, now)
    return JobRow(
        job_id=words.text(view.get("job_id")),
        owner=words.text(view.get("owner")),
        state=words.acceptance(view),
        gpus=allowed or words.NONE if view.get("finish_ts") else words.text(view.get("num_gpus") or 0),
        allowed="" if view.get("finish_ts") else allowed,
        node=words.text(view.get("node")),
        progress=words.progress(view),
        percent=min(100, 100 * done // total) if total else None,
        time=_time_of_job(view, moment, now),
        time_key=_time_key(view),
        when=when,
        waits=when if when != words.NONE else _why_unforeseen(view),
        at=_sorts_by(view),
        alarm=never or (f"deadline {late}" if late else ""),
        remark=never or _remark_below_name(view),
    )


def _remark_below_name(view: View) -> str:
    """Return what to know of a job, without the name that stands above it."""
    return (words.news(view) or "").removeprefix(f"{view.get('job_id')} ")


def _time_of_job(view: View, moment: Callable[[float], str], now: float) -> str:
    """Return how long a job ran, or since when it runs or waits, so that a page changes only when something happens."""
    if view.get("finish_ts"):
        return words.brief(_time_key(view)) if view.get("start_ts") else words.NONE
    since = words.measured(view.get("start_ts") or view.get("submit_ts"), moment)
    today = moment(now).partition(" ")[0]
    return since.removeprefix(f"{today} ").rpartition(":")[0] if since else words.NONE


def _time_key(view: View) -> float:
    """Return what the same is sorted by: the longer, the larger. Of an open job it does not change with time."""
    began = float(view.get("start_ts") or view.get("submit_ts") or 0.0)
    return float(view["finish_ts"]) - began if view.get("finish_ts") else -began


def _why_unforeseen(view: View) -> str:
    """Return why nobody knows when a job starts: that it is held, or suspended, or what it waits for."""
    state = words.state(view)
    reason = words.short_reason(view)
    if reason is None or state == SUBMITTED:
        return reason or "no start is foreseen yet"
    return f"suspended {reason}" if state == "suspended" else f"{state}: {reason}"


def event(view: View) -> tuple[float, str, str]:
    """Time, type and words of an event."""
    kind = words.text(view.get("type"))
    said = view.get("sentence") or "; ".join(view.get("problems") or ())
    if kind in ("reshaped", "moved"):
        gap = words.measured(view.get("gap_s"), ", stood still for {:.2f} s") or ""
        said = f"{view.get('from_gpus')} to {view.get('to_gpus')} GPUs{gap}"
    elif kind == "adjusting":
        said = f"goes down to {view.get('to')} GPUs for {view.get('for')}"
    elif not said and view.get("stages_s"):
        said = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in view["stages_s"].items())
    return float(view.get("at") or 0.0), kind, str(said or "")


def _sorts_by(view: View) -> float:
    known = (view.get("finish_ts"), view.get("start_in_s"), view.get("eta_s"))
    return next((float(at) for at in known if isinstance(at, int | float) and at), math.inf)


@dataclass(frozen=True)
class EventGroup:
    """Outcome, and the steps that led to it, oldest first; each is a time, a type and words."""

    number: int  # of its last event: a name for it
    came: tuple[float, str, str]
    steps: tuple[tuple[float, str, str], ...]


def event_groups(events: Iterable[View]) -> list[EventGroup]:
    """The events of one job in groups, newest first; `events` are oldest first."""
    groups: list[EventGroup] = []
    steps: list[View] = []
    for view in events:
        if view.get("type") in STEPS:
            steps.append(view)
            continue
        groups.append(EventGroup(int(view["_id"]), event(view), tuple(map(event, steps))))
        steps = []
    if steps:  # it is under way
        groups.append(EventGroup(int(steps[-1]["_id"]), event(steps[-1]), tuple(map(event, steps[:-1]))))
    return groups[::-1]


def _when(view: View, moment: Callable[[float], str], now: float) -> str:
    """When it ended, or when it starts and ends."""
    if ended := words.measured(view.get("finish_ts") or None, moment):
        return ended
    starts, ends = words.starts(view, moment, now), words.ends(view, moment, now)
    said = [f"starts {starts}" if starts else "", f"ends {ends}" if ends else ""]
    return ", ".join(filter(None, said)) or words.NONE


def unbroken(text: str) -> str:
    """Return a text of which no line ends between a number and its per cent sign."""
    return text.replace(" %", "\u00a0%")
