"""Reads SenseTime's Helios (S-Lab-System-Group/HeliosData): `cluster_log.csv` of one cluster.

Jobs with GPUs that completed (D11); `cpu_num` is for the whole job.
"""

from __future__ import annotations

from reshape_papers.traces.csv_files import CsvTable, TraceSource
from reshape_papers.traces.trace import Trace, TraceJob

COLUMNS = ("gpu_num", "cpu_num", "state", "submit_time", "start_time", "end_time")


def read(place: TraceSource) -> Trace:
    table = CsvTable.read(place.find("cluster_log.csv", "cluster_log.csv.gz"), COLUMNS)
    return Trace.from_jobs(
        "helios",
        (
            TraceJob(
                f"helios-{position:06d}", cells.moment("submit_time"), cells.whole("gpu_num"),
                cells.moment("end_time") - cells.moment("start_time"), cells.number("cpu_num", 0.0),
            )
            for position, cells in table
            if cells.text("state") == "COMPLETED" and cells.whole("gpu_num") > 0
        ),
    )  # fmt: skip
