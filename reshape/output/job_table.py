"""Lists jobs for the terminal: which of them, in which order, and the columns that fit. Pure; used by the verbs.

Each job has one line. Where a terminal is too narrow, columns in which no job has anything go first, then the least
useful ones, and a long name or reason is cut: `reshape job` and `explain` tell it whole, as does a table that goes into
a file. Text of users is escaped, as in all tables. Only the state has a colour, and that on terminals alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click

from coordinator.dashboard import words
from coordinator.dashboard.words import measured, progress, text
from reshape.output.tables import NONE, Cells, cut_apart, one_line_each, plain

View = Mapping[str, Any]

HEAD = (
    "JOB",
    "OWNER",
    "QUEUE",
    "STATE",
    "GPUS",
    "NODE",
    "RESHAPES",
    "PROGRESS",
    "END",
    "DEADLINE",
    "TIME",
    "AGE",
    "REASON",
)
LEAST_WANTED = ("RESHAPES", "AGE", "QUEUE", "NODE", "DEADLINE", "PROGRESS", "TIME", "OWNER", "END")
COLOURS = {
    "submitted": "yellow",
    "suspended": "magenta",
    "held": "magenta",
    "initializing": "cyan",
    "initialized": "cyan",
    "adjusting": "cyan",
    "restarting": "cyan",
    "running": "green",
    "completed": "blue",
    "failed": "red",
    "cancelled": "bright_black",
}
LONGEST_NAME = 0.25  # of the width of a terminal
EMULATED = "The GPUs are emulated."
LAST = float("inf")  # of jobs without a value to sort by


def table(
    rows: Sequence[View], now: float, width: int | None = None, coloured: bool = False, marks: Sequence[str] = ()
) -> str:
    """A line per job. `now`: seconds since 1970; `width`: columns of the terminal, None for no limit.

    GPUS are those that it has and the most that it can run on; TIME is how long it has run, or ran. `marks`: letters
    before the names of the jobs.
    """
    cells: list[Cells] = [_cells(view, now, short=width is not None) for view in rows]
    empty = [name for at, name in enumerate(HEAD) if all(row[at] == NONE for row in cells)]
    head: Cells = HEAD
    if width is not None and len({row[1] for row in cells}) <= 1:  # whose they are is no news on a terminal
        head, cells = _without_column(head, cells, "OWNER")
    if width is not None:
        names = cut_apart([plain(row[0]) for row in cells], int(width * LONGEST_NAME))
        cells = [(name, *row[1:]) for name, row in zip(names, cells, strict=True)]
        if HEAD[-1] in empty:
            head, cells = _without_column(head, cells, HEAD[-1])
    cells = [(f"{mark} {row[0]}", *row[1:]) for mark, row in zip(marks, cells, strict=True)] if marks else cells
    least_wanted = dict.fromkeys([*(name for name in LEAST_WANTED if name in empty), *LEAST_WANTED])
    droppable = [name for name in least_wanted if name in head]
    lines = one_line_each(head, cells, width, droppable, {"STATE": painted_state} if coloured else None)
    emulated = any(view.get("emulated") and view.get("num_gpus") for view in rows)
    return f"{lines}\n{EMULATED}" if emulated else lines


def _without_column(head: Cells, cells: Sequence[Cells], name: str) -> tuple[Cells, list[Cells]]:
    at = head.index(name)
    return (*head[:at], *head[at + 1 :]), [(*row[:at], *row[at + 1 :]) for row in cells]


def painted_state(state: str) -> str:
    """The state of a job in its colour; what is no state stays as it is."""
    return click.style(state, fg=COLOURS[state]) if state in COLOURS else state


def _cells(view: View, now: float, short: bool) -> Cells:
    return (
        text(view.get("job_id")),
        text(view.get("owner")),
        text(view.get("queue")),
        words.state(view),
        gpus(view),
        text(view.get("node")),
        text(view.get("reshapes")),
        percent(view) if short else progress(view),
        short_end(view, now) if short else _end(view, now),
        _deadline(view, now),
        _time(view, now),
        measured(view.get("submit_ts"), lambda at: words.brief(now - at)) or NONE,
        text(words.short_reason(view) if short else words.news(view)),
    )


def gpus(view: View) -> str:
    """`2/4`: now, and the most that it can run on; `cpu` of a job that trains without any."""
    counts = view.get("optional_num_gpus")
    allowed = [n for n in counts if isinstance(n, int)] if isinstance(counts, list) else []
    now = view.get("num_gpus") or 0
    if allowed and max(allowed) == 0:
        return "cpu"
    if view.get("finish_ts") and not now:
        return NONE
    return f"{now}/{max(allowed)}" if allowed else text(now)


def percent(view: View) -> str:
    """Its progress in few columns: `30 %` where its length is known."""
    share = share_done(view)
    return progress(view) if share is None or words.has_target(view) else f"{int(100 * share)} %"


def share_done(view: View) -> float | None:
    """Return the share of its length that a job has done, 0 to 1; None while that is not known."""
    done, total = view.get("iters_done") or 0, view.get("iterations")
    return done / total if isinstance(done, int) and isinstance(total, int) and total > 0 else None


def _time(view: View, now: float) -> str:
    """How long it has run since it started first, or ran until its end."""
    until = view.get("finish_ts") or now
    return measured(view.get("start_ts") or None, lambda at: words.brief(until - at)) or NONE


def _end(view: View, now: float) -> str:
    """When it ends, or starts: an interval (90 %), else one time, with a question mark if it is a guess."""
    if ended := view.get("finish_ts"):
        return measured(ended, lambda at: f"{words.brief(now - at)} ago") or NONE
    for name, before in (("starts_between", "starts "), ("ends_between", "")):
        if times := view.get(name):
            first, last = (words.brief(at - now) for at in times)
            return f"{before}within {last}" if times[0] <= now else f"{before}in {first} to {last}"
    if (left := measured(view.get("eta_s"), lambda s: f"in {words.brief(s)}")) is not None:
        return left
    doubt = "?" * bool(view.get("start_guesses"))
    return measured(view.get("start_in_s"), lambda s: f"starts in {words.brief(s)}{doubt}") or NONE


def short_end(view: View, now: float) -> str:
    """The same in few columns: of an interval its later end, rounded up; a guess in one unit, too."""
    if view.get("finish_ts"):
        return _end(view, now)
    for name, before in (("starts_between", "starts"), ("ends_between", "in")):
        if times := view.get(name):
            left = words.coarse(times[1] - now, math.ceil)
            return f"{before} <{left}" if times[1] > now else f"{before} now".removeprefix("in ")
    if view.get("eta_s") is None and view.get("start_guesses"):
        return measured(view.get("start_in_s"), lambda s: f"starts {words.coarse(s)}?") or NONE
    return _end(view, now).replace("starts in ", "starts ")


def _deadline(view: View, now: float) -> str:
    if (late := measured(view.get("late_s"), lambda s: f"missed by {words.brief(s)}")) is not None:
        return late
    ended = view.get("finish_ts")
    left = measured(view.get("deadline_ts"), lambda at: f"in {words.brief(at - now)}")
    return ("met" if ended else left) if left else NONE


def _number(field: str) -> Callable[[View], Any]:
    def key(view: View) -> float:
        value = view.get(field)
        return float(value) if isinstance(value, int | float) else LAST

    return key


def _most_done(view: View) -> float:
    share = share_done(view)
    return LAST if share is None else -share


ORDERS: Mapping[str, Callable[[View], Any]] = {
    "age": _number("submit_ts"),
    "name": lambda view: text(view.get("job_id")),
    "state": lambda view: text(view.get("state")),
    "gpus": lambda view: -(view.get("num_gpus") or 0),
    "progress": _most_done,
    "end": _number("eta_s"),
    "start": _number("start_in_s"),
    "deadline": _number("deadline_ts"),
}
"""By the name of the order: what comes first has the smallest key; what has no value comes last."""


def chosen(
    rows: Sequence[View],
    order: str,
    states: Collection[str] = (),
    queue: str | None = None,
    node: str | None = None,
    owner: str | None = None,
) -> list[View]:
    """Return the jobs that meet all conditions, in an order of `ORDERS`; the oldest first among equals."""
    found = [
        view
        for view in rows
        if (not states or view.get("state") in states or words.state(view) in states)
        and (queue is None or view.get("queue") == queue)
        and (node is None or view.get("node") == node)
        and (owner is None or view.get("owner") == owner)
    ]
    return sorted(found, key=lambda view: (ORDERS[order](view), ORDERS["age"](view)))
