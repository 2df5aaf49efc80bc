"""Reads Microsoft's Philly (msr-fiddle/philly-traces): `cluster_job_log`, or the list that Pollux's authors made of it.

From the log, jobs that passed (D11: the others did not end by themselves); a job with several attempts is as long as
its last one. The list does not say how a job ended, so all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reshape_papers.traces.csv_files import CsvRow, CsvTable, TraceSource, documents
from reshape_papers.traces.trace import Trace, TraceJob
from simulator.scenario import NoWorkload

LOGS = ("cluster_job_log", "cluster_job_log.json", "cluster_job_log.json.gz")
LISTS = ("philly.csv", "philly.csv.gz", "pollux/philly.csv.gz")
NAME = "philly"


def read(place: TraceSource) -> Trace:
    """Read the log, or the list of Pollux's authors. Raises `NoWorkload` as all readers do."""
    path = place.find(*LOGS, *LISTS)
    return Trace.from_jobs(NAME, _of_list(path) if ".csv" in path.suffixes else _of_log(path))


def _of_list(path: Path) -> Iterator[TraceJob]:
    for position, cells in CsvTable.read(path, ("timestamp", "duration", "num_gpus")):
        name = f"philly-{position:06d}"
        yield TraceJob(name, cells.moment("timestamp"), cells.whole("num_gpus"), cells.number("duration"))


def _of_log(path: Path) -> Iterator[TraceJob]:
    for position, job in enumerate(documents(path), start=1):
        where = f"{path}, job {position}"
        if "status" not in job or not isinstance(job.get("attempts"), list):
            raise NoWorkload(f"{where} must have status, submitted_time and attempts, as cluster_job_log has.")
        if job["status"] == "Pass" and job["attempts"]:
            last = CsvRow(where, job["attempts"][-1])
            gpus = sum(len(server["gpus"]) for server in last.row.get("detail", ()))
            ran_s = last.moment("end_time") - last.moment("start_time")
            yield TraceJob(f"philly-{position:06d}", CsvRow(where, job).moment("submitted_time"), gpus, ran_s)
