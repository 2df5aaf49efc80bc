"""Reads Voda's 24 jobs (heyfey/vodascheduler, branch `exp`), with the speed-ups that its authors measured.

A job's work is what its log adds up to on one GPU; every job may have 1 to 4 GPUs.
"""

from __future__ import annotations

from reshape_papers.traces.csv_files import CsvTable, TraceSource
from reshape_papers.traces.trace import Trace, TraceJob, on_nodes

COLUMNS = ("workload", "algorithm", "job", "model", "submit_s", "work_1gpu_s_derived")
CASE, LOGGED_UNDER, ASKED = "run_1", "ElasticFIFO", 2


def read(place: TraceSource) -> Trace:
    """Read one run. `place.file`: `run_1`, the default, or `run_1_hard`."""
    case, usual = place.file or CASE, TraceSource(place.folder)
    speeds = CsvTable.read(usual.find("speedup.csv", "voda/speedup.csv"), ("model", "gpus", "speedup"))
    up = {(c.text("model"), c.whole("gpus")): c.number("speedup") for _, c in speeds}
    jobs = CsvTable.read(usual.find("jobs.csv", "voda/jobs.csv"), COLUMNS)
    logged = [c for _, c in jobs if (c.text("workload"), c.text("algorithm")) == (case, LOGGED_UNDER)]
    return Trace.from_jobs(
        "voda",
        (
            TraceJob(
                f"voda-{cells.whole('job'):02d}", cells.number("submit_s"), ASKED,
                cells.number("work_1gpu_s_derived") / up[cells.text("model"), ASKED],
                model=cells.text("model"), iterations=cells.number("work_1gpu_s_derived"),
            )
            for cells in logged
        ),
        speeds=tuple(
            {
                "job_type": model, "gpu_type": "GPU", "num_gpus": count,
                "seconds_per_iteration": 1.0 / factor, "origin": "imported",
            }
            for (model, count), factor in up.items()
        ),
        nodes=on_nodes("node", "GPU", 3, 4), counts=(1, 2, 3, 4),
        fitted=(f"work: what the logs of {case} under {LOGGED_UNDER} add up to on one GPU, start-up included",),
        invented=("every job asked for 2 GPUs",),
    )  # fmt: skip
