"""Shapes what the API tells of GPUs, nodes and jobs into the cells of the dashboard's tables and pictures. Pure."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.dashboard import words

View = Mapping[str, Any]

HUES = 12  # in static/dashboard.css
REMEMBERED = 10_000  # jobs whose colour is kept
RUNNING = "running"


class Colours:
    """Gives each job one of `HUES` colours, the same on every page; neighbours in time differ. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: OrderedDict[str, int] = OrderedDict()
        self._count = 0

    def of(self, job_id: Any) -> str:
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
    kind: str  # in use, reserved, idle, faulty
    job: str | None  # who uses it, or whom it is promised to
    mark: str  # what happens to it; empty while its job just trains

    @property
    def title(self) -> str:
        """All about it in one line."""
        gpu, about = self.gpu, self.job or words.text(self.gpu.get("problem") or self.kind)
        busy = words.measured(gpu.get("utilisation"), "{:.0%} busy")
        return ", ".join(filter(None, (words.text(gpu.get("gpu_id")), about, self.mark, busy)))


def user_of(gpu: View) -> str | None:
    """The job that has the GPU, or else the one that it is promised to."""
    user = gpu.get("held_by") if gpu.get("held_by") is not None else gpu.get("job_id")
    return None if user is None else str(user)


def gpu_cell(gpu: View, states: Mapping[str, str]) -> GpuCell:
    """`states` of the jobs that have GPUs."""
    user, held = user_of(gpu), gpu.get("held_by") is not None
    if gpu.get("state") == "faulty":
        return GpuCell(gpu, "faulty", user, "")
    if user is None:
        return GpuCell(gpu, "idle", None, "")
    if not held:
        return GpuCell(gpu, "reserved", user, "reserved")
    if gpu.get("job_id") is not None and str(gpu["job_id"]) != user:
        return GpuCell(gpu, "in use", user, f"for {gpu['job_id']} next")
    state = states.get(user, "ending")
    return GpuCell(gpu, "in use", user, "" if state == RUNNING else state)


def fleet(gpus: Iterable[View], nodes: Iterable[View], states: Mapping[str, str]) -> list[tuple[View, list[GpuCell]]]:
    """Each of the nodes with its GPUs, in order."""
    of_node: dict[Any, list[GpuCell]] = {node["node"]: [] for node in nodes}
    for gpu in gpus:
        if gpu["node"] in of_node:
            of_node[gpu["node"]].append(gpu_cell(gpu, states))
    return [(node, of_node[node["node"]]) for node in nodes]


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
    when: str
    late: bool
    remark: str


def job(view: View, moment: Callable[[float], str], now: float) -> JobRow:
    done, total = view.get("iters_done") or 0, view.get("iterations")
    return JobRow(
        job_id=words.text(view.get("job_id")),
        owner=words.text(view.get("owner")),
        state=words.state(view),
        gpus=words.gpu_count(view),
        allowed=words.joined(view.get("optional_num_gpus"), "", ", "),
        node=words.text(view.get("node")),
        progress=words.progress(view),
        percent=min(100, 100 * done // total) if total else None,
        when=_when(view, moment, now),
        late=view.get("late_s") is not None,
        remark=words.remark(view) or "",
    )


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


def _when(view: View, moment: Callable[[float], str], now: float) -> str:
    """When it ended, or when it starts and ends."""
    if ended := words.measured(view.get("finish_ts") or None, moment):
        return ended
    starts, ends = words.starts(view, moment, now), words.ends(view, moment, now)
    said = [f"starts {starts}" if starts else "", f"ends {ends}" if ends else ""]
    return ", ".join(filter(None, said)) or words.NONE
