"""Formats jobs, GPUs, nodes, profiles and decisions as tables and text for the terminal. Pure; used by the verbs.

Promises that text of users (a job id, a log line in a message) cannot move the cursor, colour the screen or reorder a
line: characters that do not print are escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordinator.dashboard import words
from coordinator.dashboard.words import expected_start, measured, missed, progress, rate, seconds, size, text
from reshape.output.tables import NONE, Cells, fitted, plain, table

View = Mapping[str, Any]

LEAST_WANTED = ("RESHAPES", "NODE", "ETA")  # columns that go first where a line is too short
UNITS = {
    "cpu": (1, "core"), "memory": (2**30, "GiB"), "block_io": (2**20, "MiB/s of disk"),
    "network_io": (2**20, "MiB/s of network"),
}  # fmt: skip


def jobs(rows: Iterable[View], width: int | None = None) -> str:
    """A line per job; its message beside it, or below where it does not fit."""
    head = ("JOB", "STATE", "GPUS", "NODE", "PROGRESS", "ETA", "RESHAPES", "MESSAGE")
    return fitted(head, [_job_cells(j) for j in rows], width, LEAST_WANTED)


def gpus(rows: Iterable[View], width: int | None = None) -> str:
    head = ("GPU", "NODE", "TYPE", "STATE", "JOB", "HELD BY", "BUSY", "MEMORY")
    return table(head, (_gpu_cells(g) for g in rows), width)


def nodes(rows: Iterable[View], width: int | None = None) -> str:
    head = ("NODE", "TYPE", "GPUS", "IDLE", "CORES", "CPU", "MEMORY", "JOBS", "PC/WC/CC", "SCORE", "STATE")
    return table(head, (_node_cells(n) for n in rows), width)


def profiles(rows: Sequence[View], width: int | None = None) -> str:
    """Show every field that any row has, `_id` and bookkeeping left out; fractions with six digits."""
    if not rows:
        return "No rows."
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("_id", "version")))
    return table([n.upper() for n in names], ([_rounded(row.get(n)) for n in names] for row in rows), width)


def job(view: View) -> str:
    """One job, a line per fact, unknown ones left out."""
    usage = view.get("usage") or {}
    facts = {
        "job": text(view.get("job_id")),
        "state": text(view.get("state")),
        "message": words.message(view),
        "left alone": view.get("left_alone"),
        "receipt": (view.get("lost") or {}).get("sentence"),
        "fault": view.get("fault") if not view.get("finish_ts") else None,
        "gpus": _gpu_count(view) + _listed(view.get("gpu_ids"), ": ", ", "),
        "allowed": _listed(view.get("optional_num_gpus"), "", " or ") or None,
        "node": view.get("node"),
        "pinned to": view.get("pinned"),
        "sla": _time(view.get("sla")),
        "estimate": _time(view.get("estimate")),
        "target": words.target(view),
        "type": view.get("job_type"),
        "progress": progress(view),
        "epochs": measured(view.get("epochs_done"), lambda epochs: f"{round(epochs, 2):g}"),
        view.get("value_name") or "value": measured(view.get("value"), "{:.6g}"),
        "speed": measured(view.get("seconds_per_iteration"), "{:.4g} s per iteration"),
        "starts": expected_start(view),
        "eta": measured(view.get("eta_s"), seconds),
        "deadline": missed(view),
        "cpu": measured(usage.get("cpu_cores"), "{:.2f} cores"),
        "cpu limit": _limit(usage),
        "not limited": view.get("unlimitable"),
        "memory": measured(usage.get("memory"), size),
        "disk": measured(usage.get("block_io"), rate),
        "network": measured(usage.get("network_io"), rate),
        "efficiency": _efficiency(view.get("growth_efficiency") or {}),
        "category": view.get("category"),
        "reshapes": view.get("reshapes"),
        "restart": view.get("restart"),
        "moves": view.get("moves") or None,
        "sent back": view.get("preempts") or None,
        "generation": view.get("generation"),
        "submitted": measured(view.get("submit_ts"), moment),
        "started": measured(view.get("start_ts"), moment),
        "finished": measured(view.get("finish_ts"), moment),
    }
    lines = [f"{name + ':':<12} {plain(str(fact))}" for name, fact in facts.items() if fact is not None]
    faults = [
        *(("problem", p) for p in view.get("problems") or ()),
        *(("warning", w) for w in view.get("warnings") or ()),
    ]
    pods = [f"{'pod ' + text(pod.get('pod')) + ':':<12} {_pod(pod)}" for pod in view.get("pods") or ()]
    return "\n".join([*lines, *pods, *(f"  {kind}: {plain(str(sentence))}" for kind, sentence in faults)])


def _pod(pod: View) -> str:
    """One of a job of several pods."""
    does = {None: "not heard of", "none": "up", "stopping": "saving"}.get(pod.get("trainer"), str(pod.get("trainer")))
    return plain(f"{_listed(pod.get('gpu_ids'), '', ', ')} on {pod.get('node')}, {does}")


def decision(view: View, width: int | None = None) -> str:
    """Explain a decision: its sentence, then all candidates with the chosen one marked."""
    at, decision_id = measured(view.get("at"), moment) or "", text(view.get("decision_id"))
    lines = [
        f"{at}  {plain(words.what(view))}  [{decision_id}]".lstrip(),
        f"  {plain(text(view.get('sentence')))}",
    ]
    if unchanged := view.get("unchanged_makespan_s"):
        guesses = view.get("unchanged_guesses")
        doubt = f", a guess, since the length of {words.listed(guesses)} was unknown" if guesses else ""
        ran = (
            f"If nothing changed, it was predicted then{doubt}, the jobs that ran would be done in {_exact(unchanged)}."
        )
        lines.append(f"  {plain(ran)}")
    if candidates := view.get("candidates"):
        head = ("", "GPUS", "NODE", "TAKEN FROM", "MAKESPAN", "SUM", "THIS JOB", "WHY NOT")
        rows = table(head, (_candidate_cells(c) for c in candidates), width and width - 2)
        lines += [f"  {row}" for row in rows.splitlines()]
        if any(c.get("low_confidence") for c in candidates):
            lines.append("  ~ rests on a speed or a length that was never measured")
    return "\n".join(lines)


def present(view: View) -> str:
    """Return the present facts about a job, which may differ from earlier predictions; empty if there are none."""
    facts = {"expected start": expected_start(view), "deadline": missed(view)}
    return "\n".join(f"Now: {name}: {plain(fact)}." for name, fact in facts.items() if fact)


def _exact(value: float) -> str:
    """Format seconds for comparison: candidates often differ by less than a minute."""
    return f"{value:.1f} s"


def moment(value: float) -> str:
    """Seconds since 1970 as local time; as the number that it is where no calendar has that day."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    except (OverflowError, ValueError, OSError):
        return str(value)


def _job_cells(view: View) -> Cells:
    problems = view.get("problems") or ()
    refused = "" if view.get("closed") is False else "not accepted: "
    late, means = missed(view), _with_reason(view, words.message(view))
    said = [f"deadline {late}" if late else None, f"{refused}{problems[0]}" if problems else means]
    message = "; ".join(str(one) for one in said if one) or None
    return (
        text(view.get("job_id")),
        text(view.get("state")),
        _gpu_count(view),
        text(view.get("node")),
        progress(view),
        measured(view.get("eta_s"), seconds) or _starts(view) or NONE,
        text(view.get("reshapes")),
        text(message),
    )


def _starts(view: View) -> str | None:
    """Short, for a table: a guess has a question mark."""
    return measured(view.get("start_in_s"), lambda s: f"starts in {seconds(s)}{'?' * bool(view.get('start_guesses'))}")


def _gpu_cells(view: View) -> Cells:
    used, total = (measured(view.get(f), size) for f in ("memory_used", "memory_total"))
    return (
        text(view.get("gpu_id")),
        text(view.get("node")),
        text(view.get("gpu_type")) + (" (emulated)" if view.get("emulated") else ""),
        text(view.get("state")) + (f" ({view['problem']})" if view.get("problem") else ""),
        text(view.get("job_id")),
        text(view.get("held_by")),
        measured(view.get("utilisation"), "{:.0%}") or NONE,
        f"{used or NONE} of {total}" if total else NONE,
    )


def _node_cells(view: View) -> Cells:
    kind = text(view.get("gpu_type")) + (" (emulated)" if view.get("emulated") else "")
    cores = measured(view.get("cores") or None, "{:g}") or NONE
    if taken := view.get("others_cores"):
        cores = f"{max(0.0, view['cores'] - taken):.3g} of {cores}"
    use = (measured(view.get(f), "{:.0%}") or NONE for f in ("cpu_use", "memory_use"))
    of = view.get("categories") or {}
    categories = "/".join(text(of.get(each)) for each in ("PC", "WC", "CC")) if of else NONE
    state = "closed" if not view.get("schedulable", True) else "open" if view.get("heard", True) else "silent"
    room = text(view.get("gpus")), text(view.get("idle")), cores, *use
    return (text(view.get("node")), kind, *room, text(view.get("jobs")), categories, text(view.get("score")), state)


def _candidate_cells(view: View) -> Cells:
    taken = view.get("victim")
    source = NONE if taken is None else f"{taken}, which keeps {view.get('victim_num_gpus')}"
    doubt = " ~" if view.get("low_confidence") else ""
    makespan, total, own = (measured(view.get(f), _exact) or NONE for f in ("makespan_s", "sum_s", "job_s"))
    chosen = not view.get("rejected")
    gpus, node = text(view.get("num_gpus")), text(view.get("node"))
    return ("->" if chosen else "", gpus, node, source, makespan + doubt, total, own, view.get("rejected") or "chosen")


def _time(given: Any) -> str | None:
    """Return a time as the user wrote it; a plain number is seconds."""
    return None if given is None else f"{given} s" if isinstance(given, int | float) else str(given)


def _limit(usage: View) -> str | None:
    """Format the CPU limit; names jobs that cannot be limited."""
    cores = measured(usage.get("cpu_limit"), "{:.2f} cores")
    return cores and f"{cores} ({usage.get('limited_by') or 'its machine has no way to hold it'})"


def _efficiency(view: View) -> str | None:
    """Format the growth efficiency (FlowCon): change of the value per second and used resource."""
    found = view.get("per_unit") or {}
    parts = [f"{found[r] * scale:.3g} per {unit}" for r, (scale, unit) in UNITS.items() if r in found]
    share = (view.get("shares") or {}).get("cpu")
    peak = f"{share:.0%} of its best; " if isinstance(share, int | float) else ""
    return f"{peak}{', '.join(parts)}" if parts else None


def _with_reason(view: View, message: Any) -> Any:
    """Add the reason why a job is not reshaped, if it could train on other counts."""
    why, counts = view.get("left_alone"), view.get("optional_num_gpus")
    several = isinstance(counts, list) and len(counts) > 1
    return f"trains; {why}" if why and several and message in (None, "trains") else message


def _gpu_count(view: View) -> str:
    count = view.get("num_gpus") or 0
    return text(count) + (" (emulated)" if count and view.get("emulated") else "")


def _listed(values: Any, before: str, between: str) -> str:
    """A list in one line; nothing where it is empty, or no list because a user wrote something else."""
    return before + between.join(str(v) for v in values) if isinstance(values, list) and values else ""


def _rounded(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else text(value)
