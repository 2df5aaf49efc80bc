"""Other people's jobs with deadlines: the traces of ElasticFlow (ASPLOS 2023), read from RESHAPE_DATA.

FIFO, elastic FIFO, EDF (greedy and elastic, as ElasticFlow compares with it) and our policy run them. A job
meets its deadline when it ends at or before it, without any tolerance. Called by `workloads/__init__.py`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from adaptive_scheduler.diagnosis import present_task_s
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles import DEFAULT_TYPE, Overheads, Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.simulator import baselines, rivals
from adaptive_scheduler.simulator.scenario import Contender, Costs, NoWorkload, Submission, Workload
from adaptive_scheduler.snapshot import Gpu, Node

SETTINGS = Settings(systems=("elastic", "deadline"))
ORIGIN = Overheads(k8s_init=0.0, k8s_term=0.0, proc_init=27.0, proc_term=6.0, ckpt=2.0, origin="given")
"""Their simulator's: 2 + 2 (log2 n + 1) to checkpoint and stop, here for n = 4, and 27 more for a new process."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One file, and the cluster that its figures were published for."""

    file: str
    gpu_type: str
    nodes: int
    gpus: int  # of each node


TRACES: Mapping[str, Trace] = {
    "deadline-traces-pollux": Trace("elasticVpollux_e.csv", "T4", 16, 4),
    "deadline-traces-philly": Trace("philly_103959.csv", "A100", 32, 8),
}


def replay(seed: int, data: Path | None, name: str) -> Workload:
    """Nothing in it is drawn. Raises `NoWorkload` where the files are not there."""
    if data is None:
        raise NoWorkload("deadline traces need ElasticFlow's; set RESHAPE_DATA to the folder that holds elasticflow/.")
    trace, folder = TRACES[name], data / "elasticflow"
    rows = _read(folder / "traces" / trace.file)
    sizes = tuple(n for n in (1, 2, 4, 8) if n <= trace.gpus)
    models = sorted({row["model_name"] for row in rows})
    profiles = Profiles.from_rows([row for model in models for row in _speeds(folder, trace, model, sizes)])
    profiles = Profiles(profiles.speeds, overhead_rows={DEFAULT_TYPE: ORIGIN})
    jobs = tuple(_job(row, sizes) for row in rows)
    costs = Costs.in_place(ORIGIN)
    nodes = tuple(_node(f"node-{i:02d}", trace) for i in range(trace.nodes))
    ours = Contender(
        "deadline", partial(decide, settings=SETTINGS), costs, profiles, SETTINGS,
        expected=lambda snapshot, job: present_task_s(snapshot, job, SETTINGS), says="decide(), elastic",
    )  # fmt: skip
    elastic = Settings(systems=("elastic",))
    workload = Workload(
        name, seed, jobs, nodes,
        (
            Contender("fifo", baselines.default(jobs), costs, profiles, says="as many GPUs as asked for"),
            Contender("elastic-fifo", partial(decide, settings=elastic), costs, profiles, elastic, says="decide()"),
            ours,
        ),
        emulated=("all GPUs, nodes and jobs: nothing ran on real ones",),
        fitted=("reconfiguration: that of the origin's simulator for 4 GPUs",),
        invented=(f"every job may run on {', '.join(map(str, sizes))} GPUs of one node, whatever it asked for",),
    )  # fmt: skip
    edf = rivals.contender("edf", workload)
    return workload if edf is None else replace(workload, contenders=(*workload.contenders[:2], edf, ours))


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise NoWorkload(f"{path} cannot be read; set RESHAPE_DATA to the folder that holds elasticflow/.") from error


def _speeds(folder: Path, trace: Trace, model: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Their tables hold iterations per second, by global batch and GPUs; a type of ours is model and batch."""
    return [
        {
            "job_type": f"{model}-{row['global_batch_size']}", "gpu_type": trace.gpu_type, "num_gpus": n,
            "seconds_per_iteration": 1.0 / float(row[str(n)]), "origin": "imported",
        }
        for row in _read(folder / f"throughputs_{trace.gpu_type}" / f"{model}.csv")
        for n in sizes
        if float(row[str(n)] or 0) > 0
    ]  # fmt: skip


def _job(row: Mapping[str, str], sizes: tuple[int, ...]) -> Submission:
    submit_s = float(row["submit_time"])
    return Submission(
        id=f"job-{int(row['job_id']):03d}", type=f"{row['model_name']}-{row['batch_size']}", arrival_s=submit_s,
        optional=sizes, iterations=float(row["iteration"]), fixed_gpus=min(int(row["num_gpu"]), sizes[-1]),
        sla_s=None if row.get("best_effort") == "1" else float(row["ddl"]) - submit_s,
    )  # fmt: skip


def _node(name: str, trace: Trace) -> Node:
    return Node(name, trace.gpu_type, tuple(Gpu(f"{name}-{i}") for i in range(trace.gpus)))


NAMES: Mapping[str, Callable[[int, Path | None], Workload]] = {name: partial(replay, name=name) for name in TRACES}
