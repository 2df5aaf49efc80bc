"""Formats jobs, GPUs, nodes, profiles and decisions as tables and text for the terminal. Pure; used by the verbs.

Promises that text of users (a job id, a log line in a message) cannot move the cursor, colour the screen or reorder a
line: characters that do not print are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordinator.adapters.clock import local_time
from coordinator.dashboard import words
from coordinator.dashboard.words import measured, memory, missed, starts, text
from reshape.output.tables import (
    LEAST,
    LONGEST,
    NONE,
    Cells,
    columns,
    cut_apart,
    folded,
    middle_cut,
    one_line_each,
    plain,
    table,
    wrapped,
)

View = Mapping[str, Any]


GPU_HEAD = ("GPU", "NODE", "TYPE", "STATE", "JOB", "HELD BY", "BUSY", "MEMORY")
NODE_HEAD = ("NODE", "TYPE", "GPUS", "IDLE", "CORES", "CPU", "MEMORY", "JOBS", "PC/WC/CC", "SCORE", "STATE")
LONGEST_GPU = 0.16  # of the width of a terminal: a UUID is cut there
NO_NEWS = {NONE, "0", "0/0/0"}  # cells of a column that says nothing


def gpus(rows: Iterable[View], width: int | None = None) -> str:
    """A line per GPU; on a terminal names are cut, and below a line stands what is wrong, or does not fit into it."""
    views = list(rows)
    cells = [_gpu_cells(view) for view in views]
    if width is None:
        return table(GPU_HEAD, cells)
    names = cut_apart([plain(row[0]) for row in cells], int(width * LONGEST_GPU))
    jobs = cut_apart([plain(row[4]) for row in cells], int(width * LONGEST_GPU))
    holders = cut_apart([plain(row[5]) for row in cells], int(width * LONGEST_GPU))
    head: Cells = GPU_HEAD
    cells = [
        (name, *row[1:3], _gpu_state(view), job, holder, *row[6:])
        for name, job, holder, row, view in zip(names, jobs, holders, cells, views, strict=True)
    ]
    if all(row[5] in (row[4], NONE) for row in cells):  # that its job holds it is no news
        head = tuple(name for name in GPU_HEAD if name != "HELD BY")
        cells = [(*row[:5], *row[6:]) for row in cells]
    if _widest_line(whole := table(head, cells)) <= width:
        lines = [[line] for line in whole.splitlines()]
    else:
        first, *others = table(head[:-1], [row[:-1] for row in cells], width).splitlines()
        below = [[f"  {row[-1]}"] if row[-1] != NONE else [] for row in cells]
        lines = [[first], *([line, *more] for line, more in zip(others, below, strict=True))]
    for at, view in enumerate(views, 1):
        if view.get("problem"):
            lines[at] += _paragraph(text(view["problem"]), width)
    return "\n".join(line for each in lines for line in each)


def nodes(rows: Iterable[View], width: int | None = None) -> str:
    """A line per node; on a narrow terminal columns that say nothing of any node go first."""
    cells = [_node_cells(view) for view in rows]
    if width is None:
        return table(NODE_HEAD, cells)
    empty = [name for at, name in enumerate(NODE_HEAD) if all(row[at] in NO_NEWS for row in cells)]
    return one_line_each(NODE_HEAD, cells, width, [name for name in ("SCORE", "PC/WC/CC", "CORES") if name in empty])


def profiles(rows: Sequence[View], width: int | None = None) -> str:
    """Show every field that any row has, `_id` and bookkeeping left out; fractions with six digits."""
    if not rows:
        return "No rows."
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("_id", "version")))
    return table([n.upper() for n in names], ([_rounded(row.get(n)) for n in names] for row in rows), width)


def job(view: View, now: float = 0.0, width: int | None = None) -> str:
    """One job, a line per fact, unknown ones left out; `width` (columns) breaks long ones between words, None does not.

    `now`: seconds since 1970; times of that day have no date.
    """
    lines = [_fact(name, str(fact), width) for name, fact in words.facts(view, local_time, now).items()]
    faults = [
        *(("problem", p) for p in view.get("problems") or ()),
        *(("warning", w) for w in view.get("warnings") or ()),
    ]
    pods = [f"{'pod ' + text(pod.get('pod')) + ':':<12} {_pod(pod)}" for pod in view.get("pods") or ()]
    faulty = [part for kind, sentence in faults for part in _paragraph(f"{kind}: {sentence}", width)]
    return "\n".join([*lines, *pods, *faulty])


def _fact(name: str, said: str, width: int | None) -> str:
    """A name, and beside it what is said of it."""
    column = f"{name + ':':<12} "
    room = None if width is None else max(width - len(column), LEAST)
    shown = plain(said)
    parts = [shown] if room is None else wrapped(shown, room) or [""]
    return f"\n{' ' * len(column)}".join([column + parts[0], *parts[1:]])


def _pod(pod: View) -> str:
    """One of a job of several pods."""
    does = {None: "not heard of", "none": "up", "stopping": "saving"}.get(pod.get("trainer"), str(pod.get("trainer")))
    return plain(f"{words.joined(pod.get('gpu_ids'), '', ', ')} on {pod.get('node')}, {does}")


def decision(view: View, width: int | None = None) -> str:
    """Explain a decision: its sentence, then all candidates with the chosen one marked."""
    at, decision_id = measured(view.get("at"), local_time) or "", text(view.get("decision_id"))
    head = f"{at}  {plain(words.what(view))}".lstrip()
    named = f"[{plain(decision_id)}]"
    whole = f"{head}  {named}"
    fits = width is None or columns(whole) <= width
    lines = [whole] if fits else [*wrapped(head, width or 0), *_paragraph(named, width)]
    lines += _paragraph(text(view.get("sentence")), width)
    if unchanged := words.unchanged(view):
        lines += _paragraph(unchanged, width)
    if receipt := view.get("receipt"):
        lines += _paragraph(text(receipt.get("sentence")), width)
    if candidates := view.get("candidates"):
        lines += [f"  {row}" for row in _candidates(candidates, width and width - 2).splitlines()]
        if any(words.is_doubtful(c) for c in candidates):
            lines.append("  ~ rests on a speed or a length that was never measured")
    return "\n".join(lines)


def _candidates(candidates: Sequence[View], width: int | None) -> str:
    """Return a table of them; on a terminal without the columns in which none has anything."""
    rows = [words.candidate(one) for one in candidates]
    shown = [
        at for at in range(len(words.CANDIDATE)) if width is None or any(row[at] not in (NONE, "") for row in rows)
    ]
    head = [words.CANDIDATE[at].upper() for at in shown]
    cells: list[Cells] = [[row[at] for at in shown] for row in rows]
    for names in (words.TAKEN.upper(), words.NODE.upper()):  # the sentence above tells the chosen one's whole
        if width is not None and names in head:
            cells = _cut_to_fit(head, cells, head.index(names), width)
    return folded(head, cells, width)


def _cut_to_fit(head: Cells, rows: Sequence[Cells], at: int, width: int) -> list[Cells]:
    """Cut the cells of one column in their middle, so that all columns but the last fit."""
    before = max(columns(line) for line in table(head[:-1], [row[:-1] for row in rows]).splitlines())
    widest = max(columns(row[at]) for row in rows)
    room = max(widest - max(0, before - width), columns(head[at]))
    cut = cut_apart([row[at] for row in rows], room)
    return [[*row[:at], name, *row[at + 1 :]] for row, name in zip(rows, cut, strict=True)]


def _paragraph(sentence: str, width: int | None) -> list[str]:
    """Indented lines that break between words; one line where `width` is None."""
    shown = plain(sentence)
    return [f"  {line}" for line in (wrapped(shown, max(width - 2, LEAST)) if width else [shown])]


def present(view: View, said: Iterable[str] = (), now: float = 0.0, width: int | None = None) -> str:
    """Return the present facts about a job, which may differ from earlier predictions; empty if there are none.

    `said`: sentences of its decisions, not to be repeated; `width` (columns) breaks them between words.
    """
    waits = view.get("starts_if") or view.get("reshape")  # then its message says for what
    why = str(view.get("message") if waits else view.get("left_alone") or "")
    facts = {
        "stands still": None if waits else view.get("stalled"),
        "reshape": view.get("pause"),
        "expected start": starts(view, local_time, now),
        "deadline": missed(view),
        "use": words.measured_use(view),
    }
    lines = [f"Now: {plain(why)}"] if why and why not in set(said) else []
    lines += [f"Now: {name}: {plain(fact)}." for name, fact in facts.items() if fact]
    return "\n".join(lines if width is None else [part for line in lines for part in wrapped(line, width)])


def _gpu_cells(view: View) -> Cells:
    return (
        text(view.get("gpu_id")),
        text(view.get("node")),
        text(view.get("gpu_type")) + (" (emulated)" if view.get("emulated") else ""),
        _gpu_state(view) + (f" ({view['problem']})" if view.get("problem") else ""),
        text(view.get("job_id")),
        text(view.get("held_by")),
        measured(view.get("utilisation"), "{:.0%}") or NONE,
        memory(view) or NONE,
    )


def _gpu_state(view: View) -> str:
    """Return the state of a GPU; of one that a reservation keeps for whom it does."""
    return text(view.get("state")) if view.get("kept_for") is None else f"kept for {view['kept_for']}"


def _node_cells(view: View) -> Cells:
    kind = text(view.get("gpu_type")) + (" (emulated)" if view.get("emulated") else "")
    cores = measured(view.get("cores") or None, "{:g}") or NONE
    if taken := view.get("others_cores"):
        cores = f"{max(0.0, view['cores'] - taken):.3g} of {cores}"
    use = (measured(view.get(f), "{:.0%}") or NONE for f in ("cpu_use", "memory_use"))
    of = view.get("categories") or {}
    categories = "/".join(text(of.get(each)) for each in ("PC", "WC", "CC")) if of else NONE
    closed = "drained" if view.get("drained") else None if view.get("schedulable", True) else "closed"
    state = closed or ("open" if view.get("heard", True) else "silent")
    idle = text(view.get("idle")) + (f", {view['kept']} kept" if view.get("kept") else "")
    room = text(view.get("gpus")), idle, cores, *use
    return (text(view.get("node")), kind, *room, text(view.get("jobs")), categories, text(view.get("score")), state)


def _widest_line(lines: str) -> int:
    return max(map(columns, lines.splitlines()))


def _rounded(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else text(value)


def event(view: View) -> str:
    """One event on one line: its number, when, of which job, what, and why."""
    at, what = measured(view.get("at"), local_time) or NONE, text(view.get("type"))
    of = middle_cut(text(view.get("gpu_id") if what == "gpu" else view.get("job_id")), LONGEST)
    said = view.get("sentence") or "; ".join(map(str, view.get("problems") or ())) or view.get("state")
    return plain(f"{text(view.get('_id')):>6}  {at}  {of}  {what}{f': {said}' if said not in (None, '', what) else ''}")


def policy(view: View) -> str:
    """The systems and their settings, a line for each."""
    systems = ", ".join(map(str, view.get("systems") or ())) or "none: jobs run in the order of their arrival"
    settings = view.get("settings") or {}
    lines = [f"{name} = {value}" for name, value in _flat(settings) if name != "systems"]
    return "\n".join([f"systems: {systems}", f"a reshape is done by: {text(view.get('reshape_by'))}", *sorted(lines)])


def _flat(settings: View, before: str = "") -> list[tuple[str, Any]]:
    """Settings of settings with both names, such as specon.alpha."""
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        found += _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else [(f"{before}{name}", value)]
    return found
