"""Sets what would happen beside what happens as things stand: for programs, and as a table for people. Pure."""

from __future__ import annotations

import math
from typing import Any

from coordinator.forecasts.forecast import Forecast
from coordinator.forecasts.what_if import WhatIf
from reshape.output.tables import table

View = dict[str, Any]


def as_object(found: WhatIf) -> View:
    """Return both as one object; `then` is None where nothing was to be changed."""
    return {"now": _object(found.now), "then": None if found.then is None else _object(found.then)}


def as_table(found: WhatIf) -> str:
    """Return a row per job, then makespan, mean completion time and missed deadlines, and who is not in it."""
    return "\n".join([table(found.head, found.rows), "", str(found), *found.notes])


def _object(found: Forecast) -> View:
    return {
        "makespan_s": found.makespan_s,
        "mean_completion_s": found.mean_completion_s,
        "missed_deadlines": found.missed,
        "jobs": [
            {
                "job_id": job.job_id,
                "start_s": job.start_s,
                "end_s": job.end_s,
                "guess": job.guess,
                "late_s": job.late_s if job.late_s is None or math.isfinite(job.late_s) else None,
            }
            for job in found.jobs
        ],
    }
