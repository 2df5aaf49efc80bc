"""Compares plans on crowded clusters: the paper's rules, the planner, and peers' rules, all with the same costs.

Simulated, so nothing depends on the machine but the time. Published traces come from RESHAPE_DATA, on fewer nodes than
they were made for: where each job finds idle GPUs all policies decide alike. Workload S, W1 and the rigid case (one job
that is as long as ten others) need no data.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, DEFAULT_TYPE, Profiles
from adaptive_scheduler.snapshot import Gpu, Node
from benchmarks.result import Result, Row, Table
from reshape_papers import report
from reshape_papers.comparison_policies import PLANNER
from reshape_papers.run import compare
from reshape_papers.sidecar_policy import sidecar_setup
from reshape_papers.traces import replay
from reshape_papers.workloads import build
from simulator.scenario import Costs, Submission, Workload

TITLE = "simulated makespan and mean completion time of the planner, beside the paper's rules and peers'"
MEASURES = {"makespan": "makespan_s", "mean completion": "mean_jct_s"}
GOALS = {"makespan": 0.96, "mean completion": 0.975}  # of the geometric means
PAPER = "sidecar"
PEERS = ("default", "elastic-srjf", "srtf", "afs-l", "optimus")
RIGID_SHORT = 10
RIGID_SHORT_S = 10_000.0
RIGID_LONG_S = 100_000.0


class Crowded(NamedTuple):
    """A trace, its first jobs, and the share of its nodes that they get."""

    trace: str
    jobs: int | None
    share: float


TRACES = (
    Crowded("philly", 300, 0.3),
    Crowded("alibaba", 600, 0.34),
    Crowded("pollux", None, 0.5),
    Crowded("tiresias", None, 0.7),
    Crowded("itp", 300, 0.3),
    Crowded("elasticflow", 200, 0.2),
    Crowded("gavel", None, 0.5),
)
DRAWN = ("workload-s", "elastic-w1-measured")  # with the seeds 0 and 1
VARIED_SEEDS = range(4)
ELASTIC_SHARES = (0.0, 0.2, 0.5, 0.8)


def run(options: argparse.Namespace) -> Result:
    """Simulate all policies on all workloads. `options.tiny`: the rigid case alone."""
    measured = {workload.name: _measure(workload) for workload in _workloads(options.tiny)}
    rows = [
        _compared(name, what, key, policies) for name, policies in measured.items() for what, key in MEASURES.items()
    ]
    geometric = [_geometric_mean([row for row in rows if row.what.endswith(what)], what) for what in MEASURES]
    notes = ["Ours: policy `planner`. Theirs: the paper's rules, policy `sidecar`. CPU: of the whole simulation."]
    if _data_folder() is None and not options.tiny:
        notes.append("Published traces were left out: set RESHAPE_DATA to a folder that has them.")
    tables = [_table_of_policies(name, policies) for name, policies in measured.items()]
    if not options.tiny:
        tables.append(_table_of_variations())
    sizes = {"workloads": len(measured)}
    return Result("peers", "O6", TITLE, "the paper's rules", sizes, [*rows, *geometric], tables, notes)


def _workloads(tiny: bool) -> Iterator[Workload]:
    yield rigid_case()
    if tiny:
        return
    for name in DRAWN:
        for seed in (0, 1):
            workload = build(name, seed, _data_folder())
            yield replace(workload, name=f"{name}, seed {seed}")
    data = _data_folder()
    for one in TRACES if data else ():
        nodes = replay(one.trace, data, one.jobs).nodes
        fewer = nodes[: max(1, math.ceil(one.share * len(nodes)))]
        workload = replay(one.trace, data, one.jobs, fewer)
        yield replace(workload, name=f"{one.trace}, {len(workload.jobs)} jobs, {len(fewer)} of {len(nodes)} nodes")


def _data_folder() -> Path | None:
    folder = os.environ.get("RESHAPE_DATA")
    return Path(folder) if folder else None


def rigid_case() -> Workload:
    """Return ten jobs of 10,000 s and one of 100,000 s, one GPU each, on two GPUs: at best they end in 100,000 s."""
    speed = {"job_type": "t", "gpu_type": "V100", "num_gpus": 1, "seconds_per_iteration": 1.0, "origin": "measured"}
    profiles = Profiles.from_rows([speed])
    jobs = [Submission(f"short{i}", "t", 0.0, (1,), RIGID_SHORT_S, 1) for i in range(RIGID_SHORT)]
    jobs.append(Submission("long", "t", 0.0, (1,), RIGID_LONG_S, 1))
    nodes = (Node("a", "V100", (Gpu("a0"), Gpu("a1"))),)
    ours = sidecar_setup(Costs.in_place(DEFAULT_OVERHEADS), profiles)
    return Workload("one long rigid job", 0, tuple(jobs), nodes, (ours,))


def _measure(workload: Workload) -> dict[str, dict[str, Any]]:
    """Return the measures of each policy, and the bounds on them under the name `bound`."""
    known = {one.name for one in workload.policy_setups}
    bounds = report.bounds_of(workload)
    found: dict[str, dict[str, Any]] = {}
    for policy in (PAPER, PLANNER, *(name for name in PEERS if name != "default" or name in known)):
        began = time.process_time()
        (simulated,) = compare(workload, [policy], bounded=False)
        found[policy] = {**simulated.row, "cpu_s": time.process_time() - began}
    makespan_s = bounds.get("lp_makespan_s", bounds["fluid_makespan_s"])
    found["bound"] = {"makespan_s": makespan_s, "mean_jct_s": bounds["jct_bound_s"]}
    return found


def with_rigid_jobs(workload: Workload, elastic_share: float) -> Workload:
    """Return the workload in which only this share of its jobs may change their GPU count."""
    rng = random.Random(workload.seed)
    rigid = {job.id for job in workload.jobs if rng.random() >= elastic_share}
    jobs = (replace(job, optional=(job.fixed_gpus,)) if job.id in rigid else job for job in workload.jobs)
    return replace(workload, jobs=tuple(jobs))


def with_wrong_lengths(workload: Workload, sigma: float) -> Workload:
    """Return the workload with believed lengths that are off by a log-normal factor."""
    rng = random.Random(workload.seed)
    jobs = (replace(job, believed_iterations=job.iterations * math.exp(rng.gauss(0.0, sigma))) for job in workload.jobs)
    return replace(workload, jobs=tuple(jobs))


def with_dearer_changes(workload: Workload, factor: float) -> Workload:
    """Return the workload in which each change takes so many times as long, which the scheduler knows."""
    seconds = ("k8s_init", "k8s_term", "proc_init", "proc_term", "ckpt")
    dearer = replace(DEFAULT_OVERHEADS, **{name: factor * getattr(DEFAULT_OVERHEADS, name) for name in seconds})
    ours = next(one for one in workload.policy_setups if one.name == PAPER)
    profiles = replace(ours.profiles, overhead_rows={DEFAULT_TYPE: dearer})
    changed = replace(ours, costs=Costs.in_place(dearer), profiles=profiles, costs_by_type={})
    return replace(workload, policy_setups=(changed,))


VARIATIONS: Mapping[str, Callable[[Workload], Workload]] = {
    "as drawn": lambda workload: workload,
    **{f"{share:.0%} of the jobs elastic": partial(with_rigid_jobs, elastic_share=share) for share in ELASTIC_SHARES},
    **{f"lengths wrong, sigma {sigma:g}": partial(with_wrong_lengths, sigma=sigma) for sigma in (0.5, 1.0)},
    "changes ten times as dear": partial(with_dearer_changes, factor=10.0),
}


def _table_of_variations() -> Table:
    """Return the planner's measures by those of the paper's rules: geometric means over the seeds of a workload."""
    rows = list[list[str]]()
    for workload_name in DRAWN:
        for variation, vary in VARIATIONS.items():
            ratios = [_planner_by_paper(vary(build(workload_name, seed, _data_folder()))) for seed in VARIED_SEEDS]
            means = [f"{statistics.geometric_mean(column):.3f}" for column in zip(*ratios, strict=True)]
            rows.append([workload_name, variation, *means])
    title = f"the planner by the paper's rules, {len(VARIED_SEEDS)} draws of each"
    return Table(title, ("WORKLOAD", "VARIATION", "MAKESPAN", "MEAN"), rows)


def _planner_by_paper(workload: Workload) -> tuple[float, ...]:
    (planner,) = compare(workload, [PLANNER], bounded=False)
    (paper,) = compare(workload, [PAPER], bounded=False)
    return tuple(planner.row[key] / paper.row[key] for key in MEASURES.values())


def _compared(name: str, what: str, key: str, policies: Mapping[str, Mapping[str, Any]]) -> Row:
    ours = policies[PLANNER][key]
    theirs = policies[PAPER][key]
    return Row(f"{name}: {what}", ours, theirs, ours / theirs, "s", floor=1.01)


def _geometric_mean(rows: list[Row], what: str) -> Row:
    ratio = statistics.geometric_mean(row.ratio for row in rows)
    return Row(f"geometric mean: {what}", ratio, 1.0, ratio, "", floor=GOALS[what])


def _table_of_policies(name: str, policies: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = ("POLICY", "MAKESPAN", "OF BOUND", "MEAN", "OF BOUND", "P99", "RESHAPES", "MOVES", "CPU")
    bound = policies["bound"]
    rows = [
        [
            policy,
            f"{one['makespan_s']:.0f} s",
            f"{one['makespan_s'] / bound['makespan_s']:.2f}",
            f"{one['mean_jct_s']:.0f} s",
            f"{one['mean_jct_s'] / bound['mean_jct_s']:.2f}",
            f"{one['p99_jct_s']:.0f} s",
            str(one["adds"] + one["removes"]),
            str(one["moves"]),
            f"{one['cpu_s']:.1f} s",
        ]
        for policy, one in policies.items()
        if policy != "bound"
    ]
    return Table(name, columns, rows)
