"""Reads Alibaba's GPU traces: openb of 2023 (`openb_pod_list_*.csv`) and PAI of 2020 (`pai_task_table.csv`).

openb: pods with GPUs that ran and were deleted; those still running at the end of the trace are left out (D11). PAI:
jobs all of whose tasks were `Terminated`, PAI's word for success; a job has the GPUs of all instances of all its tasks,
and its submission is its first start, since no other time is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from reshape_papers.traces.csv_files import CsvRow, CsvTable, TraceSource
from reshape_papers.traces.trace import Trace, TraceJob

PODS = ("num_gpu", "cpu_milli", "memory_mib", "pod_phase", "creation_time", "scheduled_time", "deletion_time")
ENDED = ("Succeeded", "Failed")
TASKS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
SHARED = "a share of a GPU counts as a whole one"


def openb(place: TraceSource) -> Trace:
    """Read the trace of 2023. Failed pods count as jobs, because hardly any other pod in this trace ended."""
    usual = "openb_pod_list_default.csv"
    table = CsvTable.read(place.find(usual, f"{usual}.gz", f"alibaba_gpu_2023/{usual}.gz"), PODS)
    pods = (_pod(position, cells) for position, cells in table if cells.text("pod_phase") in ENDED)
    invented = (SHARED, "pods that failed are jobs of that length", "any GPU type will do, whatever gpu_spec names")
    return Trace.from_jobs("alibaba", (pod for pod in pods if pod.gpus), invented=invented)


def _pod(position: int, cells: CsvRow) -> TraceJob:
    return TraceJob(
        f"pod-{position:05d}", cells.number("creation_time"), cells.whole("num_gpu"),
        cells.number("deletion_time") - cells.number("scheduled_time"),
        cells.number("cpu_milli") / 1000.0, cells.number("memory_mib") * 2.0**20,
    )  # fmt: skip


def pai(place: TraceSource) -> Trace:
    path = place.find("pai_task_table.csv", "pai_task_table.csv.gz")
    by_job: dict[str, list[CsvRow]] = {}
    for _, cells in CsvTable.read(path, TASKS, header=TASKS):
        if cells.text("job_name") != "job_name":  # some copies have a header
            by_job.setdefault(cells.text("job_name"), []).append(cells)
    return Trace.from_jobs("alibaba-pai", _pai_jobs(by_job), invented=(SHARED, "submitted when they started"))


def _pai_jobs(by_job: dict[str, list[CsvRow]]) -> Iterator[TraceJob]:
    for position, tasks in enumerate(by_job.values(), start=1):
        if all(task.text("status") == "Terminated" for task in tasks):
            start_s = min(task.number("start_time") for task in tasks)
            yield TraceJob(
                f"pai-{position:06d}", start_s, _pai_gpus(tasks),
                max(task.number("end_time") for task in tasks) - start_s,
                _in_all(tasks, "plan_cpu") / 100.0, _in_all(tasks, "plan_mem") * 1e9,
            )  # fmt: skip


def _pai_gpus(tasks: list[CsvRow]) -> int:
    """Return the GPUs of all tasks, rounded up; `plan_gpu` is per cent of a GPU per instance."""
    return math.ceil(_in_all(tasks, "plan_gpu") / 100.0)


def _in_all(tasks: list[CsvRow], name: str) -> float:
    return math.fsum(task.number(name, 0.0) * task.number("inst_num", 1.0) for task in tasks)
