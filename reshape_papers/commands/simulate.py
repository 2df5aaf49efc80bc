"""Runs `reshape simulate`, and prints tables, JSON, CSV or charts.

Called by `simulate_verbs.py`. Results go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from adaptive_scheduler.snapshot import Gpu, Node
from coordinator.dashboard.bars import Bar
from coordinator.errors import Rejected
from reshape.output.tables import NONE, table
from reshape.output.terminal import to_json, writable_folder
from reshape.services.inventory import inventory
from reshape_papers.failures import NONE as NO_FAILURES
from reshape_papers.failures import DrawnFailures
from reshape_papers.figures.chart import Points, at_once, distribution
from reshape_papers.report import COLUMNS, Row, summary
from reshape_papers.run import SimulationRun, compare
from reshape_papers.traces import replay
from reshape_papers.workloads import build, is_drawn
from simulator.scenario import NoWorkload, Workload
from simulator.state import SimulationStuck

SINCE = "seconds since the first job was submitted"
ROWS = 200
POINTS = 20
"""Points of a loss curve between two changes of a job's speed."""

HEAD = {
    "POLICY": ("policy", "{}"),
    "MAKESPAN": ("makespan_s", "{:.0f} s"),
    "SPREAD": ("makespan_sd_s", "± {:.0f}"),
    "MEAN JCT": ("mean_jct_s", "{:.0f} s"),
    "P99 JCT": ("p99_jct_s", "{:.0f} s"),
    "OVERHEAD": ("overhead_share", "{:.1%}"),
    "ADDS": ("adds", "{:.3g}"),
    "REMOVES": ("removes", "{:.3g}"),
    "MOVES": ("moves", "{:.3g}"),
    "LIMITS": ("limits", "{:.3g}"),
    "PENDING": ("pending_at_last_arrival", "{:.3g}"),
    "GPUS": ("mean_gpus_in_use", "{:.1f}"),
    "CORES": ("mean_cores_in_use", "{:.2f}"),
    "FASTER": ("jobs_faster", "{:.3g}"),
    "SLOWER": ("jobs_slower", "{:.3g}"),
    "BEST": ("best", "{:+.1%}"),
    "WORST": ("worst", "{:+.1%}"),
    "MEAN GAIN": ("mean_gain", "{:+.1%}"),
    "ART": ("art_s", "{:.0f} s"),
    "FAILED": ("failed", "{:.3g}"),
    "RESCHEDULED": ("rescheduled", "{:.3g}"),
    "SLA MET": ("sla_met_share", "{:.1%}"),
    "CRASHES": ("crashes", "{:.3g}"),
    "LOST": ("lost_work_s", "{:.0f} s"),
    "/LP": ("makespan_over_lp", "{:.3f}"),
    "/FLUID": ("makespan_over_fluid", "{:.3f}"),
    "JCT/BOUND": ("jct_over_bound", "{:.3f}"),
}


@dataclass(frozen=True, slots=True)
class JobSource:
    """Source of the jobs: a workload by name, or the first `count` jobs of a trace, on `nodes` if given."""

    name: str
    trace: bool = False
    count: int | None = None
    nodes: tuple[str, ...] = ()
    failures: DrawnFailures = NO_FAILURES

    def draws(self, seeds: int, data: Path | None) -> list[Callable[[], Workload]]:
        """Return a factory per seed; a single one if nothing is drawn."""
        are_drawn = self.failures or (not self.trace and is_drawn(self.name))
        return [partial(self._draw, seed, data) for seed in range(seeds if are_drawn else 1)]

    def _draw(self, seed: int, data: Path | None) -> Workload:
        if self.trace:
            workload = replay(self.name, data, self.count, as_nodes(self.nodes))
        else:
            workload = build(self.name, seed, data)
        return self.failures.drawn(workload, seed)


def simulate(
    jobs: JobSource, *, policies: Sequence[str], seeds: int, output: str, plot: Path | None, data: Path | None
) -> None:
    """Simulate and print. Raises `Rejected` with a sentence for input that cannot be simulated."""
    if plot is not None:
        make_room(plot)
    first, rows = all_runs(jobs, seeds, policies, data)
    result = summary(first[0].workload, rows)
    if output == "json":
        click.echo(to_json(result))
    elif output == "csv":
        click.echo(as_csv(result["rows"]), nl=False)
    else:
        click.echo(as_table(result))
    if plot is not None:
        for path in draw(first, plot):
            click.echo(f"{path} is written.", err=True)


def make_room(plot: Path) -> None:
    """Make the chart folder before the simulation, which may take long."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Rejected("charts need matplotlib: run `pip install matplotlib`.")
    writable_folder(plot, "--plot")


def as_nodes(texts: Sequence[str]) -> tuple[Node, ...]:
    """Parse nodes as `reshape up --node` does, such as a=8xV100 or c=cpu:32."""
    return tuple(
        Node(n.name, n.gpus[0].gpu_type if n.gpus else "", tuple(Gpu(g.gpu_id) for g in n.gpus), cores=n.cores)
        for n in (inventory(None, texts) if texts else ())
    )


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_table(result: dict[str, Any]) -> str:
    """Return a table: means of each policy over all seeds, comparisons, and the sources of the inputs."""
    means = [row for row in result["rows"] if row["seed"] is None]
    ratios = [
        (c["policy"], c["against"], f"{c['makespan_ratio']:.3f}", f"{c['mean_jct_ratio']:.3f}")
        for c in result["comparisons"]
    ]
    head = {title: column for title, column in HEAD.items() if any(row.get(column[0]) is not None for row in means)}
    parts = [
        f"{result['workload']}: {result['jobs']} jobs on {' + '.join(result['nodes'])}, {_seeds(result)}",
        table(list(head), ([_cell(row.get(name), form) for name, form in head.values()] for row in means)),
        *([table(("POLICY", "AGAINST", "MAKESPAN", "MEAN JCT"), ratios)] if ratios else []),
        _inputs(result),
    ]
    return "\n\n".join(parts)


def draw(runs_of_seed: Sequence[SimulationRun], folder: Path) -> list[Path]:
    """Draw a Gantt chart and loss curves per policy, and JCTs, GPUs and cores in use of all. SVG and PNG.

    Omits Gantt charts of more than `ROWS` rows.
    """
    from reshape.output.plots import gantt
    from reshape_papers import plots

    workload = runs_of_seed[0].workload
    name, zero = workload.name, min(job.arrival_s for job in workload.jobs)
    written: list[Path] = []
    for run in runs_of_seed:
        title = f"{name}, seed {workload.seed}: {run.policy}"
        bars = _bars(run, zero)
        if 0 < len({bar.gpu for bar in bars}) <= ROWS:
            colours = "job" if run.outcome.held else "on"
            written += gantt(bars, folder / f"{name}-{run.policy}", title, colours=colours)
        if curves := _losses(run, zero):
            path = folder / f"{name}-{run.policy}-losses"
            written += plots.lines(curves, path, SINCE, "evaluation value, share of its range", title)
    series: dict[str, tuple[str, str, Callable[[SimulationRun, float], Points]]] = {
        "jct": ("job completion time, seconds", "share of jobs", _jcts),
        "gpus": (SINCE, "GPUs in use", _gpus_in_use),
        "cores": (SINCE, "cores in use", _cores_in_use),
    }
    for what, (x, y, points) in series.items():
        lines = {run.policy: points(run, zero) for run in runs_of_seed}
        if any(lines.values()):
            written += plots.steps(lines, folder / f"{name}-{what}", x, y)
    return written


def _bars(run: SimulationRun, zero: float) -> list[Bar]:
    """Return a row per GPU, and per job on CPU (these share a node), coloured by node."""
    spans = {"in use": run.outcome.held, "stopped": run.outcome.stops}
    on_cpu = {job.id for job in run.workload.jobs if job.cpu is not None}
    bars = [
        Bar(h.gpu, h.job, h.begin_s - zero, h.end_s - zero, kind)
        for kind, held in spans.items() for h in held if h.job not in on_cpu
    ]  # fmt: skip
    shared = {"in use": run.outcome.on_cpu, "stopped": [h for h in run.outcome.stops if h.job in on_cpu]}
    bars += [Bar(h.job, h.gpu, h.begin_s - zero, h.end_s - zero, kind) for kind, held in shared.items() for h in held]
    return bars


def _losses(run: SimulationRun, zero: float) -> dict[str, Points]:
    """Return the evaluation value over time of each job with a curve; progress is even between speed changes."""
    curves: dict[str, Points] = {}
    for job in run.workload.jobs:
        trail = run.outcome.trails.get(job.id, [])
        if job.cpu is None or job.cpu.curve is None or not trail:
            continue
        first, last = job.cpu.curve(0.0), job.cpu.curve(1.0)
        points = [
            (at + (then - at) * i / POINTS - zero, done + (more - done) * i / POINTS)
            for (at, done), (then, more) in pairwise(trail)
            for i in range(POINTS + 1)
        ]
        curves[job.id] = [
            (at, (job.cpu.curve(done / job.iterations) - last) / ((first - last) or 1.0)) for at, done in points
        ]
    return curves


def _jcts(run: SimulationRun, zero: float) -> Points:
    return distribution(j.finished_s - j.given.arrival_s for j in run.outcome.jobs if j.finished_s is not None)


def _gpus_in_use(run: SimulationRun, zero: float) -> Points:
    return at_once((h.begin_s - zero, h.end_s - zero) for h in run.outcome.held)


def _cores_in_use(run: SimulationRun, zero: float) -> Points:
    """Return the cores in use on all nodes; of several changes at one time the last counts."""
    now: dict[str, float] = {}
    points: dict[float, float] = {}
    for load in run.outcome.loads:
        now[load.node] = load.cores
        points[load.at_s - zero] = math.fsum(now.values())
    return list(points.items())


def all_runs(
    jobs: JobSource, seeds: int, policies: Sequence[str], data: Path | None, *, bounded: bool = True
) -> tuple[list[SimulationRun], list[Row]]:
    """Run all seeds; return the runs of the first, for charts, and the rows of all.

    `bounded`: with lower bounds of every schedule. Raises `Rejected` with a sentence for input that cannot be
    simulated.
    """
    try:
        draws = jobs.draws(seeds, data)
        workload = draws[0]()
        length = (len(set(policies)) or len(workload.policy_setups)) * len(draws)
        all_runs = (
            run for draw in (lambda: workload, *draws[1:]) for run in compare(draw(), policies, bounded=bounded)
        )
        first: list[SimulationRun] = []
        rows: list[Row] = []
        with click.progressbar(all_runs, length=length, label=f"Simulating {jobs.name}", file=sys.stderr) as bar:
            for run in bar:
                rows.append(run.row)
                if run.workload is workload:
                    first.append(run)
        return first, rows
    except (NoWorkload, SimulationStuck) as refused:
        raise Rejected(str(refused)) from refused


def _cell(value: Any, form: str) -> str:
    return NONE if value is None else form.format(value)


def _seeds(result: dict[str, Any]) -> str:
    seeds = result["seeds"]
    return f"mean of seeds 0 to {seeds[-1]}" if len(seeds) > 1 else "one run"


def _inputs(result: dict[str, Any]) -> str:
    lines = [f"{kind}: {'; '.join(result[kind])}" for kind in ("emulated", "fitted", "invented") if result[kind]]
    return "\n".join([*lines, *(f"{name}: {says}" for name, says in result["notes"].items())])
