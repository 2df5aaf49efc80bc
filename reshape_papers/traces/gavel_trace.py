"""Reads Gavel's traces (stanford-futuredata/gavel): its own `.trace` lines, or the same as CSV, with its throughputs.

Steps are counted over all workers and the batch is per worker, so one of our iterations is one step of one worker and
takes 1 / `steps_per_s` seconds, for any number of workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reshape_papers.traces.csv_files import CsvRow, CsvTable, TraceSource, text
from reshape_papers.traces.trace import Trace, TraceJob, on_nodes
from simulator.scenario import NoWorkload

USUAL = "traces/small_test.csv"
SPEEDS = "throughputs_isolated_simulation.csv"
COLUMNS = ("job_type", "batch_size_per_worker", "total_steps", "scale_factor", "arrival_time_s")
SPEED_COLUMNS = ("gpu_type", "consolidated", "model", "batch_size_per_worker", "scale_factor", "steps_per_s")
MODEL = re.compile(r"(.+) \(batch size (\d+)\)")
REFERENCE = "V100"  # determines how long a job takes on its requested count


@dataclass(frozen=True, slots=True)
class _Asked:
    """One line of a trace."""

    type: str
    steps: float
    gpus: int
    arrival_s: float
    slo: float  # multiple of its duration; below 0: none


def read(place: TraceSource) -> Trace:
    path, folder = place.find(USUAL, f"gavel/{USUAL}"), TraceSource(place.folder)
    speeds = _speeds(CsvTable.read(folder.find(SPEEDS, f"gavel/{SPEEDS}"), SPEED_COLUMNS))
    asked = _of_trace(path) if path.suffix == ".trace" else _of_table(path)
    return Trace.from_jobs(
        "gavel",
        (_job(position, job, speeds) for position, job in enumerate(asked, start=1)),
        speeds=tuple(_row(*key, per_s) for key, per_s in sorted(speeds.items())),
        nodes=(*on_nodes("v100", "V100", 1, 8), *on_nodes("p100", "P100", 2, 8), *on_nodes("k80", "K80", 3, 8)),
        counts=(1, 2, 4, 8),
        invented=(
            "the nodes: the 8 V100, 16 P100 and 24 K80 of the paper's cluster, 8 to a node",
            "a job may change its number of workers, and its batch with it, at no loss",
        ),
    )  # fmt: skip


def _speeds(table: CsvTable) -> dict[tuple[str, str, int], float]:
    """Return steps per second by type, GPU type and workers, on the fewest servers; leave out 0: it does not fit."""
    return {
        (_type(cells.text("model"), cells.text("batch_size_per_worker")), cells.text("gpu_type").upper(),
         cells.whole("scale_factor")): cells.number("steps_per_s")
        for _, cells in table
        if cells.text("consolidated") == "1" and cells.number("steps_per_s") > 0
    }  # fmt: skip


def _row(job_type: str, gpu_type: str, count: int, per_s: float) -> dict[str, Any]:
    return {
        "job_type": job_type, "gpu_type": gpu_type, "num_gpus": count,
        "seconds_per_iteration": 1.0 / per_s, "origin": "imported",
    }  # fmt: skip


def _job(position: int, job: _Asked, speeds: dict[tuple[str, str, int], float]) -> TraceJob:
    """Return the job of one line, with `slo` times its duration on V100s as its deadline."""
    per_s = speeds.get((job.type, REFERENCE, job.gpus)) or speeds.get((job.type, REFERENCE, 1))
    if per_s is None:
        raise NoWorkload(f"job {position} of the gavel trace trains {job.type}, of which {SPEEDS} has no speed.")
    took = job.steps / per_s
    sla_s = job.slo * took if job.slo > 0 else None
    name = f"gavel-{position:05d}"
    return TraceJob(name, job.arrival_s, job.gpus, took, model=job.type, iterations=job.steps, sla_s=sla_s)


def _of_table(path: Path) -> Iterator[_Asked]:
    for _, cells in CsvTable.read(path, COLUMNS):
        yield _Asked(
            _type(cells.text("job_type"), cells.text("batch_size_per_worker")), cells.number("total_steps"),
            cells.whole("scale_factor"), cells.number("arrival_time_s"), cells.number("slo", -1.0),
        )  # fmt: skip


def _of_trace(path: Path) -> Iterator[_Asked]:
    """Read tab-separated lines; in every version the last fields are steps, scale factor, weight, SLO and arrival."""
    for position, line in enumerate(text(path).splitlines(), start=1):
        fields, where = line.split("\t"), f"{path}, line {position}"
        match = MODEL.fullmatch(fields[0])
        if match is None or len(fields) not in (9, 10):
            raise NoWorkload(f"{where} must be 9 or 10 fields with tabs between, first MODEL (batch size N).")
        last = CsvRow(where, dict(zip(("steps", "gpus", "weight", "slo", "at"), fields[-5:], strict=True)))
        yield _Asked(
            _type(match[1], match[2]), last.number("steps"), last.whole("gpus"), last.number("at"), last.number("slo")
        )  # fmt: skip


def _type(model: str, batch: str) -> str:
    return f"{model}-{batch}"
