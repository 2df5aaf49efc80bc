"""Formats that say when a job came, on how many GPUs it ran and how long: Microsoft ITP and Tiresias.

What model a Tiresias job trains is read past: no speeds of those models come with the trace.
"""

from __future__ import annotations

from adaptive_scheduler.simulator.traces.files import Place, Table
from adaptive_scheduler.simulator.traces.trace import Trace, TraceJob


def itp(place: Place) -> Trace:
    """All ten clusters together, as if they were one; ten times are counted from one moment."""
    path = place.find("raw_jobs.csv.gz", "raw_jobs.csv", "microsoft_itp/raw_jobs.csv.gz")
    return _read(
        "itp", Table.read(path, ("submission_time_s", "duration_s", "num_gpu")), "submission_time_s", "duration_s"
    )


def tiresias(place: Place) -> Trace:
    path = place.find("60_job.csv", "tiresias/60_job.csv")
    return _read("tiresias", Table.read(path, ("submit_time", "duration", "num_gpu")), "submit_time", "duration")


def _read(name: str, table: Table, submitted: str, duration: str) -> Trace:
    return Trace.of(
        name,
        (
            TraceJob(f"{name}-{i:06d}", cells.number(submitted), cells.whole("num_gpu"), cells.number(duration))
            for i, cells in table
        ),
    )
