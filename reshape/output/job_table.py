"""Lists jobs for the terminal: which of them, in which order, and the columns that fit. Pure; used by the verbs.

Where a line is too short, columns in which no job has anything go first, then the least useful ones; a reason is never
cut. Text of users is escaped, as in all tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from coordinator.dashboard import words
from coordinator.dashboard.words import measured, progress, text
from reshape.output.tables import NONE, Cells, fitted

View = Mapping[str, Any]

HEAD = ("JOB", "QUEUE", "STATE", "GPUS", "NODE", "RESHAPES", "PROGRESS", "END", "DEADLINE", "AGE", "MESSAGE")
LEAST_WANTED = ("RESHAPES", "AGE", "QUEUE", "NODE", "DEADLINE", "END")
EMULATED = "The GPUs are emulated."
LAST = float("inf")  # of jobs without a value to sort by


def table(rows: Sequence[View], now: float, width: int | None = None) -> str:
    """A line per job; its message beside it, or below where it does not fit. `now`: seconds since 1970.

    GPUS are those that it has, the fewest and the most that it can run on.
    """
    cells = [_cells(view, now) for view in rows]
    empty = [name for at, name in enumerate(HEAD) if all(row[at] == NONE for row in cells)]
    lines = fitted(HEAD, cells, width, list(dict.fromkeys([*(n for n in LEAST_WANTED if n in empty), *LEAST_WANTED])))
    emulated = any(view.get("emulated") and view.get("num_gpus") for view in rows)
    return f"{lines}\n{EMULATED}" if emulated else lines


def _cells(view: View, now: float) -> Cells:
    return (
        text(view.get("job_id")),
        text(view.get("queue")),
        "suspended" if view.get("suspended") and view.get("state") == "submitted" else text(view.get("state")),
        gpus(view),
        text(view.get("node")),
        text(view.get("reshapes")),
        progress(view),
        _end(view, now),
        _deadline(view, now),
        measured(view.get("submit_ts"), lambda at: words.brief(now - at)) or NONE,
        text(_remark(view)),
    )


def _remark(view: View) -> Any:
    """What there is to say beyond its state."""
    said = words.remark(view)
    return None if said == "trains" else said


def gpus(view: View) -> str:
    """`2/1/4`: now, the fewest, the most; `cpu` of a job that trains without any."""
    counts = view.get("optional_num_gpus")
    allowed = [n for n in counts if isinstance(n, int)] if isinstance(counts, list) else []
    now = view.get("num_gpus") or 0
    if not allowed:
        return text(now)
    return "cpu" if max(allowed) == 0 else f"{now}/{min(allowed)}/{max(allowed)}"


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


def _share(view: View) -> float:
    done, total = view.get("iters_done"), view.get("iterations")
    return -done / total if isinstance(done, int) and isinstance(total, int) and total else LAST


ORDERS: Mapping[str, Callable[[View], Any]] = {
    "age": _number("submit_ts"),
    "name": lambda view: text(view.get("job_id")),
    "state": lambda view: text(view.get("state")),
    "gpus": lambda view: -(view.get("num_gpus") or 0),
    "progress": _share,
    "end": _number("eta_s"),
    "start": _number("start_in_s"),
    "deadline": _number("deadline_ts"),
}
"""By the name of the order: what comes first has the smallest key; what has no value comes last."""


def chosen(
    rows: Sequence[View], order: str, states: Collection[str] = (), queue: str | None = None, node: str | None = None
) -> list[View]:
    """Return the jobs that meet all conditions, in an order of `ORDERS`; the oldest first among equals."""
    found = [
        view
        for view in rows
        if (not states or view.get("state") in states or (view.get("suspended") and "suspended" in states))
        and (queue is None or view.get("queue") == queue)
        and (node is None or view.get("node") == node)
    ]
    return sorted(found, key=lambda view: (ORDERS[order](view), ORDERS["age"](view)))
