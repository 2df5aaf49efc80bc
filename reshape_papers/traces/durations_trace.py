"""Reads traces of arrivals, GPU counts and durations: Microsoft ITP and Tiresias.

The model of a Tiresias job is ignored, because the trace has no speeds of those models.
"""

from __future__ import annotations

from reshape_papers.traces.csv_files import CsvTable, TraceSource
from reshape_papers.traces.trace import Trace, TraceJob


def itp(place: TraceSource) -> Trace:
    """Read all ten clusters as one; their times have the same origin."""
    path = place.find("raw_jobs.csv.gz", "raw_jobs.csv", "microsoft_itp/raw_jobs.csv.gz")
    return _read(
        "itp", CsvTable.read(path, ("submission_time_s", "duration_s", "num_gpu")), "submission_time_s", "duration_s"
    )


def tiresias(place: TraceSource) -> Trace:
    path = place.find("60_job.csv", "tiresias/60_job.csv")
    return _read("tiresias", CsvTable.read(path, ("submit_time", "duration", "num_gpu")), "submit_time", "duration")


def _read(name: str, table: CsvTable, submitted: str, duration: str) -> Trace:
    return Trace.from_jobs(
        name,
        (
            TraceJob(f"{name}-{i:06d}", cells.number(submitted), cells.whole("num_gpu"), cells.number(duration))
            for i, cells in table
        ),
    )
