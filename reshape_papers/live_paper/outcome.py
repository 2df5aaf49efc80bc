"""Computes the measures of a live run from the events of its coordinator, and sets them beside paper and simulation.

Pure. Times are divided by the scale, so that they compare with the paper's. The rows have the fields of
`reshape_papers/report.py`, so that the published figures are compared as they are with a simulation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from reshape.output.tables import NONE, table
from reshape_papers import published_figures, report
from reshape_papers.live_paper.scaling import LiveJob, uses_cpu
from simulator.scenario import Workload

View = dict[str, Any]
Events = Sequence[View]


def row(policy: str, workload: Workload, scale: float, jobs: Sequence[LiveJob], events: Events) -> report.Row:
    """Return the measures of one contender's run: seconds of the paper, that is live ones over the scale."""
    jct, span = completion_times(events, scale)
    found: report.Row = {
        "policy": policy, "seed": workload.seed, "makespan_s": span, "mean_jct_s": statistics.fmean(jct.values()),
        "p99_jct_s": report.percentile(sorted(jct.values()), 0.99), "overhead_share": _overhead_share(events),
        "moves": len(_of(events, "moved")), "pending_at_last_arrival": _pending(events),
        "jct_s": jct, "start_s": _start_s(events),
    }  # fmt: skip
    if not uses_cpu(workload):
        changes = [e["direction"] for e in _of(events, "reshaped")]
        return found | {"adds": changes.count("up"), "removes": changes.count("down")}
    kinds: dict[str, list[float]] = {}
    for job in jobs:
        kinds.setdefault(job.kind, []).append(jct[job.id])
    by_kind = {kind: statistics.fmean(kinds[kind]) for kind in sorted(kinds)}
    return found | {"limits": len(_of(events, "limited")), report.BY_KIND: by_kind}


def with_gains(rows: Sequence[report.Row]) -> list[report.Row]:
    """Return the rows of one draw, each but the first with its jobs' gains over those of the first."""
    first = rows[0]["jct_s"]
    return [dict(rows[0]), *({**row, **report.gains(first, row["jct_s"])} for row in rows[1:])]


def completion_times(events: Events, scale: float) -> tuple[dict[str, float], float]:
    """Return the completion time of each job and the makespan, seconds of the paper."""
    came = {e["job_id"]: e["at"] for e in _of(events, "submitted")}
    ended = {e["job_id"]: e["at"] for e in _of(events, "completed")}
    span = max(ended.values()) - min(came.values())
    return {job: (ended[job] - at) / scale for job, at in sorted(came.items())}, span / scale


def _overhead_share(events: Events) -> float:
    """Return the standstill for changes over the running time of all jobs, first step to last (1.5)."""
    began = {e["job_id"]: e["at"] for e in _of(events, "started")}
    running = math.fsum(e["at"] - began[e["job_id"]] for e in _of(events, "completed") if e["job_id"] in began)
    stopped = math.fsum(e.get("gap_s") or 0.0 for e in events if e["type"] in ("reshaped", "restarted", "moved"))
    return stopped / running if running else 0.0


def _pending(events: Events) -> int:
    last = max(e["at"] for e in _of(events, "submitted"))
    return len(
        {e["job_id"] for e in _of(events, "submitted")} - {e["job_id"] for e in _begun(events) if e["at"] <= last}
    )


def _begun(events: Events) -> list[View]:
    return [e for e in events if e["type"] in ("launching", "completed")]


def _start_s(events: Events) -> float:
    """Return the mean live seconds from the launch to the first step."""
    stages = [e["stages_s"] for e in _of(events, "started")]
    return statistics.fmean(math.fsum(s.get(name, 0.0) for name in ("launch", "first step")) for s in stages)


def _of(events: Events, kind: str) -> list[View]:
    return [e for e in events if e["type"] == kind]


def figures(draws: Sequence[tuple[View, View]]) -> list[View]:
    """Return paper, simulated and live, mean and spread, of each published figure.

    `draws`: of each run the summary of the live rows and that of the simulation of the same draw.
    """
    compared = [tuple(map(_by_name, pair)) for pair in draws]
    return [
        {
            **dict(zip(("policy", "measure", "against"), key, strict=True)),
            "paper": figure["paper"],
            "simulated": _mean([simulated[key]["ours"] for _, simulated in compared if key in simulated]),
            "live": _mean(values),
            "spread": statistics.stdev(values) if len(values) > 1 else None,
            "values": values,
            "source": figure["source"],
        }
        for key, figure in compared[0][0].items()
        if (values := [live[key]["ours"] for live, _ in compared])
    ]  # fmt: skip


def kept(result: View) -> View:
    """Return what is kept of an experiment for docs/papers.md: each figure's mean and the deviation of one run."""
    figures = [
        {"policy": f["policy"], "measure": f["measure"], "against": f["against"], "ours": _short(f["live"]),
         "spread": _short(f["spread"])}
        for f in result["figures"]
    ]  # fmt: skip
    return {"seeds": result["runs"], "figures": figures}


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.4g}")


def _by_name(summary: View) -> dict[tuple[str, str, str | None], View]:
    return {(f["policy"], f["measure"], f["against"]): f for f in published_figures.compare(summary)}


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


RUN_HEAD = {
    "POLICY": ("policy", "{}"), "RUN": ("seed", "{}"), "MAKESPAN": ("makespan_s", "{:.0f} s"),
    "MEAN JCT": ("mean_jct_s", "{:.0f} s"), "ADDS": ("adds", "{}"), "REMOVES": ("removes", "{}"),
    "MOVES": ("moves", "{}"), "LIMITS": ("limits", "{}"), "FASTER": ("jobs_faster", "{}"),
    "SLOWER": ("jobs_slower", "{}"), "STOOD STILL": ("overhead_share", "{:.1%}"), "LIVE START": ("start_s", "{:.1f} s"),
    "ASKED": ("asked_core_s", "{:.0f}"), "GIVEN": ("core_s", "{:.0f}"), "OWN": ("own_core_s", "{:.0f}"),
    "OTHERS": ("others_core_s", "{:.0f}"), "OF": ("all_core_s", "{:.0f}"),
}  # fmt: skip


def as_table(result: View) -> str:
    """Return the runs, the published figures beside ours, and what is emulated and what stood in."""
    rows = result["rows"]
    head = {title: column for title, column in RUN_HEAD.items() if any(column[0] in row for row in rows)}
    runs = table(list(head), ([_cell(row.get(name), form) for name, form in head.values()] for row in rows))
    shown = [
        [f["policy"], f["measure"] + (f" to {f['against']}" if f["against"] else "")]
        + [_number(f[name]) for name in ("paper", "simulated", "live")]
        + [NONE if f["spread"] is None else f"± {f['spread']:.3g}"]
        for f in result["figures"]
    ]
    title = f"{result['experiment']} live: {result['jobs']} jobs, all times of the paper x {result['scale']:g}"
    beside = table(("POLICY", "MEASURE", "PAPER", "SIMULATED", "LIVE", "SPREAD"), shown)
    notes = "\n".join([*(f"{name}: {says}" for name, says in result["contenders"].items()), *result["stands_in"]])
    times = "Times are live seconds divided by the scale; LIVE START is not divided."
    if any("core_s" in row for row in rows):
        times += (
            " Core-seconds are not divided: ASKED is the work of all jobs, GIVEN what their processes used with all "
            "starts, OWN what coordinator and launches used, OTHERS what other programs did, OF what there was."
        )
    return "\n\n".join([title, runs, times, beside, notes, *result.get("off", ())])


def _cell(value: Any, form: str) -> str:
    return NONE if value is None else form.format(value)


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"
