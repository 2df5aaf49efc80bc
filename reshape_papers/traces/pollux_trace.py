"""Reads Pollux's workloads (petuum/adaptdl): jobs of six applications, as long as their authors measured them.

A job keeps the global batch that its user requested, so it needs as many iterations as training with that batch took,
and takes per iteration what was measured on that many T4 of one node, samples shared evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reshape_papers.pollux_jobs import PER_NODE, PolluxApplication
from reshape_papers.pollux_jobs import read as applications
from reshape_papers.traces.csv_files import CsvTable, TraceSource
from reshape_papers.traces.trace import Trace, TraceJob, on_nodes

USUAL = "workloads/workload-1.csv"
COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
SIZES = (1, 2, 4)


def read(place: TraceSource) -> Trace:
    """Read one workload. The folder is the one that contains `pollux/`, or `pollux/` itself."""
    path = place.find(USUAL, f"pollux/{USUAL}")
    home = place.folder if (place.folder / "pollux").is_dir() else place.folder.parent
    known = applications(home)
    table = CsvTable.read(path, COLUMNS)
    asked = sorted({(cells.text("application"), cells.whole("batch_size")) for _, cells in table})
    return Trace.from_jobs(
        "pollux",
        (
            _job(cells.text("name"), cells.number("time"), known[cells.text("application")],
                 cells.whole("batch_size"), cells.whole("num_replicas"))
            for _, cells in table
        ),
        speeds=tuple(row for name, batch in asked for row in _speeds(known, name, batch)),
        nodes=on_nodes("node", "T4", 16, PER_NODE), counts=SIZES,
        invented=("a job keeps its batch, where Pollux would adapt it",),
    )  # fmt: skip


def _job(name: str, arrival_s: float, app: PolluxApplication, batch: int, gpus: int) -> TraceJob:
    iterations = app.updates(batch)
    took = iterations * app.packed_s(batch, gpus)
    return TraceJob(name, arrival_s, gpus, took, model=f"{app.name}-{batch}", iterations=iterations)


def _speeds(known: Mapping[str, PolluxApplication], name: str, batch: int) -> Iterator[dict[str, Any]]:
    for count in SIZES:
        yield {
            "job_type": f"{name}-{batch}", "gpu_type": "T4", "num_gpus": count,
            "seconds_per_iteration": known[name].packed_s(batch, count), "origin": "imported",
        }  # fmt: skip
