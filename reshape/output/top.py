"""Draws the screen of `reshape top` and `reshape demo`: the fleet as bars, its jobs and the last decisions."""

from __future__ import annotations

import itertools
import string
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.adapters.clock import local_time
from coordinator.dashboard.words import measured, text
from coordinator.model.records import ASKED_BACK, UNRESERVED, USED_BY
from reshape.output import job_table
from reshape.output.tables import cut, plain
from reshape.output.terminal import coloured

if TYPE_CHECKING:
    from reshape.client import Client

View = Mapping[str, Any]

LETTERS = string.ascii_lowercase + string.ascii_uppercase
NOBODY = "No job waits or runs: `reshape submit -- COMMAND` starts one."
IDLE = "."
RESERVED = "+"
KEPT = "-"
FAULTY = "!"
MANY = "#"
MOST_NODES = 12
MOST_DECISIONS = 5


def drawn(client: Client, columns: int | None, lines: int | None) -> str:
    """Ask the coordinator, and draw what it answers on `lines` lines but the last; all of it where they are None."""
    now = client.jobs(), client.gpus(), client.nodes(), client.decisions(limit=MOST_DECISIONS)
    return frame(*now, time.time(), columns, lines and lines - 1, coloured())


def frame(
    jobs: Sequence[View],
    gpus: Sequence[View],
    nodes: Sequence[View],
    decisions: Sequence[View],
    now: float,
    width: int | None = 80,
    height: int | None = None,
    colours: bool = False,
) -> str:
    """One screen; without `width` and `height` everything. Pure. A job's letter stands for its GPUs in the bars."""
    letters = _letters(jobs)
    fleet = [_node(view, [g for g in gpus if g.get("node") == view.get("node")], letters) for view in nodes]
    decided = [_decision(view) for view in decisions[:MOST_DECISIONS]]
    if height is not None:
        fleet = _short(fleet, min(MOST_NODES, max(1, height // 4)), "nodes")
        decided = decided[: max(1, height // 6)]
    listed = _jobs(jobs, letters, now, width, colours)
    if height is not None:
        listed = _short(listed, max(2, height - len(fleet) - len(decided) - 5), "lines")
    above = [_summary(jobs, gpus, now), "", *fleet, ""]
    below = ["", *decided]
    if width is not None:  # the table of jobs fits, and has colours
        above = [cut(line, width) for line in above]
        below = [cut(line, width) for line in below]
    return "\n".join([*above, *listed, *below]).rstrip()


def _letters(jobs: Sequence[View]) -> dict[str, str]:
    placed = [text(view.get("job_id")) for view in jobs if view.get("num_gpus")]
    return dict(itertools.zip_longest(placed, LETTERS[: len(placed)], fillvalue=MANY))


def _summary(jobs: Sequence[View], gpus: Sequence[View], now: float) -> str:
    states = Counter(text(view.get("state")) for view in gpus)
    held = Counter(text(view.get("state")) for view in jobs)
    waits = held.pop("submitted", 0)
    emulated = " (emulated)" if any(view.get("emulated") for view in gpus) else ""
    problems = [text(view.get("problem")) for view in gpus if view.get("state") == "faulty"]
    others = sum(problem.startswith(USED_BY) for problem in problems)
    unreserved = sum(problem.startswith((UNRESERVED, ASKED_BACK)) for problem in problems)
    taken = f", {others} used by others" if others else ""
    taken += f", {unreserved} not reserved" if unreserved else ""
    broken = states["faulty"] - others - unreserved
    faulty = f"{taken}, {broken} faulty" if broken else taken
    kept = sum(view.get("kept_for") is not None for view in gpus)
    reserved = f", {kept} kept by reservations" if kept else ""
    use = f"{len(gpus) - states['idle'] - states['faulty']} of {len(gpus)} GPUs{emulated} in use{reserved}{faulty}"
    return f"{local_time(now)}   {use}   {sum(held.values())} jobs run, {waits} wait"


def _node(view: View, gpus: Sequence[View], letters: Mapping[str, str]) -> str:
    bar = "".join(_gpu(gpu, letters) for gpu in gpus)
    state = "" if view.get("schedulable", True) else "  drained" if view.get("drained") else "  closed"
    silent = "" if view.get("heard", True) else "  silent"
    kind = text(view.get("gpu_type")) if gpus else f"{measured(view.get('cores'), '{:g}') or '?'} cores"
    return plain(f"{text(view.get('node')):<12} {kind:<8} [{bar}]{state}{silent}")


def _gpu(view: View, letters: Mapping[str, str]) -> str:
    if view.get("state") == "faulty":
        return FAULTY
    holder = view.get("held_by")
    if holder is not None:
        return letters.get(text(holder), MANY)
    if view.get("kept_for") is not None:
        return KEPT
    return RESERVED if view.get("state") == "reserved" else IDLE


def _jobs(jobs: Sequence[View], letters: Mapping[str, str], now: float, width: int | None, colours: bool) -> list[str]:
    """Return the table of jobs: those that hold GPUs or cores first, then those that start first."""
    if not jobs:
        return [cut(NOBODY, width or len(NOBODY))]
    ordered = sorted(job_table.chosen(jobs, "start"), key=lambda view: view.get("state") == "submitted")
    marks = [letters.get(text(view.get("job_id")), " ") for view in ordered]
    return job_table.table(ordered, now, width, colours, marks).splitlines()


def _decision(view: View) -> str:
    return plain(f"{(measured(view.get('at'), local_time) or '')[-8:]}  {text(view.get('sentence'))}")


def _short(lines: list[str], most: int, what: str) -> list[str]:
    return lines if len(lines) <= most else [*lines[: most - 1], f"… and {len(lines) - most + 1} {what} more"]
