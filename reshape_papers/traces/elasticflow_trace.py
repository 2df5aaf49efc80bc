"""Reads ElasticFlow's deadline traces (pkusys/ElasticFlow), with its authors' throughputs.

A job's global batch is fixed, so that more GPUs gain less and less. Called as a reader, and by the workloads
`deadline-traces-*`, which run the same jobs against the published figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reshape_papers.traces.csv_files import CsvRow, CsvTable, TraceSource
from reshape_papers.traces.trace import Trace, TraceJob, on_nodes

COLUMNS = ("job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration")
SIZES = (1, 2, 4, 8)
USUAL = "traces/philly_103959.csv"
CLUSTERS = {"A100": (32, 8), "T4": (16, 4)}
"""Nodes and GPUs of each, by GPU type, that its authors used for the traces stored; the first that has all models."""


def read(place: TraceSource) -> Trace:
    path, folder = place.find(USUAL, f"elasticflow/{USUAL}"), place.folder
    home = folder / "elasticflow" if (folder / "elasticflow").is_dir() else folder
    table = CsvTable.read(path, COLUMNS)
    models = sorted({cells.text("model_name") for _, cells in table})
    rows = [
        row
        for kind in CLUSTERS
        for model in models
        if _speed_file(home, kind, model).is_file()
        for row in speeds(home, kind, model)
    ]
    jobs = [job(cells) for _, cells in table]
    needed = {one.model for one in jobs}
    fits = (kind for kind in CLUSTERS if needed <= {row["job_type"] for row in rows if row["gpu_type"] == kind})
    kind = next(fits, "A100")
    return Trace.from_jobs(
        "elasticflow", jobs, speeds=tuple(rows), nodes=on_nodes("node", kind, *CLUSTERS[kind]), counts=SIZES
    )


def job(cells: CsvRow) -> TraceJob:
    """Return the job of one row; the row's deadline is absolute, the job's counts from its submission."""
    best_effort = cells.text("best_effort") == "1"
    submit_s = cells.number("submit_time")
    return TraceJob(
        f"job-{cells.whole('job_id'):05d}", submit_s, cells.whole("num_gpu"), cells.number("duration"),
        model=f"{cells.text('model_name')}-{cells.text('batch_size')}", iterations=cells.number("iteration"),
        sla_s=None if best_effort else cells.number("ddl") - submit_s,
    )  # fmt: skip


def speeds(home: Path, gpu_type: str, model: str) -> Iterator[dict[str, Any]]:
    """Yield profile rows of one model; the files hold iterations per second by global batch and GPUs.

    A job type is named by model and batch.
    """
    for _, cells in CsvTable.read(_speed_file(home, gpu_type, model), ("global_batch_size", *map(str, SIZES))):
        for count in SIZES:
            if (per_s := cells.number(str(count), 0.0)) > 0:
                yield {
                    "job_type": f"{model}-{cells.text('global_batch_size')}", "gpu_type": gpu_type,
                    "num_gpus": count, "seconds_per_iteration": 1.0 / per_s, "origin": "imported",
                }  # fmt: skip


def _speed_file(home: Path, gpu_type: str, model: str) -> Path:
    return home / f"throughputs_{gpu_type}" / f"{model}.csv"
