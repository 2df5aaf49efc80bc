"""Sets what would happen beside what happens as things stand: for programs, and as a table for people. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coordinator.dashboard.words import NONE, listed, seconds
from reshape.output.tables import table
from reshape.what_if.forecast import Forecast, JobForecast

View = dict[str, Any]


def as_object(now: Forecast, then: Forecast | None) -> View:
    """Return both as one object; `then` is None where nothing was to be changed."""
    return {"now": _object(now), "then": None if then is None else _object(then)}


def as_table(now: Forecast, then: Forecast | None, left_out: Sequence[str] = ()) -> str:
    """Return a row per job, then makespan, mean completion time and missed deadlines, and who is not in it."""
    jobs = {job.job_id: job for job in (then or now).jobs}
    before = {job.job_id: job for job in now.jobs}
    names = [*before, *(name for name in jobs if name not in before)]
    both = then is not None
    head = ["JOB", "STARTS", "ENDS", *(["THEN STARTS", "THEN ENDS"] if both else []), "DEADLINE"]
    rows = [
        [name, *_cells(before.get(name)), *(_cells(jobs.get(name)) if both else []), _deadline(jobs.get(name))]
        for name in names
    ]
    sums = [_sums(name, now, then) for name in ("makespan_s", "mean_completion_s", "missed")]
    guess = "\n~ rests on a length or a speed that is not known" if any(job.guess for job in jobs.values()) else ""
    omits = f"\nLeft out, on CPU or waiting for something else than GPUs: {listed([*left_out])}" if left_out else ""
    return f"{table(head, rows)}\n\n{chr(10).join(sums)}{guess}{omits}"


def _object(found: Forecast) -> View:
    return {
        "makespan_s": found.makespan_s, "mean_completion_s": found.mean_completion_s, "missed_deadlines": found.missed,
        "jobs": [
            {
                "job_id": job.job_id, "start_s": job.start_s, "end_s": job.end_s, "guess": job.guess,
                "late_s": job.late_s if job.late_s is None or math.isfinite(job.late_s) else None,
            }
            for job in found.jobs
        ],
    }  # fmt: skip


def _cells(job: JobForecast | None) -> list[str]:
    if job is None:
        return [NONE, NONE]
    ends = "never" if job.end_s is None else f"in {seconds(job.end_s)}{' ~' * job.guess}"
    if job.start_s is None:
        return ["never" if job.end_s is None else "runs", ends]
    return [f"in {seconds(job.start_s)}", ends]


def _deadline(job: JobForecast | None) -> str:
    if job is None or job.late_s is None:
        return NONE
    return "kept" if not job.late_s else f"missed by {seconds(job.late_s)}" if job.end_s is not None else "missed"


def _sums(name: str, now: Forecast, then: Forecast | None) -> str:
    titles = {"makespan_s": "Makespan", "mean_completion_s": "Mean completion time", "missed": "Deadlines missed"}
    before, after = getattr(now, name), getattr(then, name) if then else None
    said = f"{titles[name]}: {_value(name, before)}"
    return said if then is None else f"{said}, then {_value(name, after)}"


def _value(name: str, value: float | None) -> str:
    return "never reached" if value is None else str(value) if name == "missed" else seconds(value)
