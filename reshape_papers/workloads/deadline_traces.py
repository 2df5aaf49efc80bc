"""Builds workloads from the deadline traces of ElasticFlow (ASPLOS 2023) in RESHAPE_DATA.

FIFO, elastic FIFO, EDF (greedy and elastic, ElasticFlow's baseline) and our policy run them. A job meets its deadline
if it ends at or before it, without any tolerance. Called by `workloads/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.deadline_feasibility import present_task_s
from adaptive_scheduler.profiles.profiles import DEFAULT_TYPE, Overheads, Profiles
from adaptive_scheduler.settings import Settings
from reshape_papers import comparison_policies, sidecar_baselines
from reshape_papers.traces import elasticflow_trace
from reshape_papers.traces.csv_files import CsvTable
from reshape_papers.traces.trace import TraceJob, on_nodes
from simulator.scenario import Costs, NoWorkload, PolicySetup, Submission, Workload

SETTINGS = Settings(systems=("elastic", "deadline"), planner="paper")
ORIGIN = Overheads(k8s_init=0.0, k8s_term=0.0, proc_init=27.0, proc_term=6.0, ckpt=2.0, origin="given")
"""Their simulator's: 2 + 2 (log2 n + 1) to checkpoint and stop, here for n = 4, and 27 more for a new process."""


@dataclass(frozen=True, slots=True)
class DeadlineTrace:
    """One trace file and the cluster of its published figures."""

    file: str
    gpu_type: str
    nodes: int
    gpus: int  # per node


TRACES: Mapping[str, DeadlineTrace] = {
    "deadline-traces-pollux": DeadlineTrace("elasticVpollux_e.csv", "T4", 16, 4),
    "deadline-traces-philly": DeadlineTrace("philly_103959.csv", "A100", 32, 8),
}


def replay(seed: int, data: Path | None, name: str) -> Workload:
    """Return the workload of one trace, which does not depend on `seed`. Raises `NoWorkload` if a file is missing."""
    if data is None:
        raise NoWorkload("deadline traces need ElasticFlow's; set RESHAPE_DATA to the folder that holds elasticflow/.")
    trace, folder = TRACES[name], data / "elasticflow"
    table = CsvTable.read(folder / "traces" / trace.file, elasticflow_trace.COLUMNS)
    sizes = tuple(n for n in elasticflow_trace.SIZES if n <= trace.gpus)
    models = sorted({cells.text("model_name") for _, cells in table})
    rows = [row for model in models for row in elasticflow_trace.speeds(folder, trace.gpu_type, model)]
    profiles = Profiles(Profiles.from_rows(rows).speeds, overhead_rows={DEFAULT_TYPE: ORIGIN})
    jobs = tuple(_submission(elasticflow_trace.job(cells), sizes) for _, cells in table)
    costs = Costs.in_place(ORIGIN)
    nodes = on_nodes("node", trace.gpu_type, trace.nodes, trace.gpus)
    ours = PolicySetup(
        "deadline", partial(decide, settings=SETTINGS), costs, profiles, SETTINGS,
        expected=lambda snapshot, job: present_task_s(snapshot, job, SETTINGS), says="decide(), elastic",
    )  # fmt: skip
    elastic = Settings(systems=("elastic",), planner="paper")
    workload = Workload(
        name, seed, jobs, nodes,
        (
            PolicySetup("fifo", sidecar_baselines.default(jobs), costs, profiles, says="as many GPUs as asked for"),
            PolicySetup("elastic-fifo", partial(decide, settings=elastic), costs, profiles, elastic, says="decide()"),
            ours,
        ),
        emulated=("all GPUs, nodes and jobs: nothing ran on real ones",),
        fitted=("reconfiguration: that of the origin's simulator for 4 GPUs",),
        invented=(f"every job may run on {', '.join(map(str, sizes))} GPUs of one node, whatever it asked for",),
    )  # fmt: skip
    edf = comparison_policies.policy_setup("edf", workload)
    return workload if edf is None else replace(workload, policy_setups=(*workload.policy_setups[:2], edf, ours))


def _submission(job: TraceJob, sizes: tuple[int, ...]) -> Submission:
    return Submission(
        id=job.id, type=job.model, arrival_s=job.arrival_s, optional=sizes, iterations=job.iterations,
        fixed_gpus=min(job.gpus, sizes[-1]), sla_s=job.sla_s,
    )  # fmt: skip


NAMES: Mapping[str, Callable[[int, Path | None], Workload]] = {name: partial(replay, name=name) for name in TRACES}
