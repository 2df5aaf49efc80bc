"""`reshape simulate` and `reshape paper`: run the simulator and print what came out.

Called by `cli.py`. Results go to standard output; progress and what is wrong go to standard error.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from adaptive_scheduler.simulator.published import compare
from adaptive_scheduler.simulator.report import COLUMNS, Row, summary
from adaptive_scheduler.simulator.run import Run, runs
from adaptive_scheduler.simulator.scenario import NoWorkload
from adaptive_scheduler.simulator.workloads import build, is_drawn
from coordinator.errors import Rejected
from reshape.render import NONE, table
from reshape.terminal import to_json

HEAD = {
    "POLICY": ("policy", "{}"),
    "MAKESPAN": ("makespan_s", "{:.0f} s"),
    "SPREAD": ("makespan_sd_s", "± {:.0f}"),
    "MEAN JCT": ("mean_jct_s", "{:.0f} s"),
    "P99 JCT": ("p99_jct_s", "{:.0f} s"),
    "OVERHEAD": ("overhead_share", "{:.1%}"),
    "ADDS": ("adds", "{:.3g}"),
    "REMOVES": ("removes", "{:.3g}"),
    "PENDING": ("pending_at_last_arrival", "{:.3g}"),
    "GPUS": ("mean_gpus_in_use", "{:.1f}"),
    "/LP": ("makespan_over_lp", "{:.3f}"),
    "/FLUID": ("makespan_over_fluid", "{:.3f}"),
    "JCT/BOUND": ("jct_over_bound", "{:.3f}"),
}


def simulate(
    *, workload: str, policies: Sequence[str], seeds: int, output: str, plot: Path | None, data: Path | None
) -> None:
    """Raises `Rejected` with a sentence for what cannot be simulated."""
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise Rejected("charts need matplotlib; install volcano-reshape[plot].")
    first, rows = _all_runs(workload, seeds, policies, data)
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


def paper(*, name: str, seeds: int, output: str, data: Path | None) -> int:
    """0 if every figure that must be met is met. Raises `Rejected` as `simulate`."""
    first, rows = _all_runs(name, seeds, (), data)
    result = summary(first[0].workload, rows)
    result["paper"] = compare(result)
    missed = [row for row in result["paper"] if row["holds"] is False and row["claim"] != "trend"]
    click.echo(to_json(result) if output == "json" else _paper_table(result))
    for row in missed:
        click.echo(f"{row['policy']} misses {row['measure']}: {row['ours']:.4g}, claimed {row['claim']}.", err=True)
    return 1 if missed else 0


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_table(result: dict[str, Any]) -> str:
    """The mean of each policy over all seeds, how they compare, and what the inputs rest on."""
    means = [row for row in result["rows"] if row["seed"] is None]
    ratios = [
        (c["policy"], c["against"], f"{c['makespan_ratio']:.3f}", f"{c['mean_jct_ratio']:.3f}")
        for c in result["comparisons"]
    ]
    parts = [
        f"{result['workload']}: {result['jobs']} jobs on {' + '.join(result['nodes'])}, {_seeds(result)}",
        table(list(HEAD), ([_cell(row[name], form) for name, form in HEAD.values()] for row in means)),
        *([table(("POLICY", "AGAINST", "MAKESPAN", "MEAN JCT"), ratios)] if ratios else []),
        _inputs(result),
    ]
    return "\n\n".join(parts)


def draw(runs_of_seed: Sequence[Run], folder: Path) -> list[Path]:
    """A Gantt chart per policy, and the JCTs and GPUs in use of all policies together. SVG and PNG."""
    from reshape import plots

    workload = runs_of_seed[0].workload
    name, zero = workload.name, min(job.arrival_s for job in workload.jobs)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for run in runs_of_seed:
        spans = {"in use": run.outcome.held, "stopped": run.outcome.stops}
        bars = [plots.Bar(h.gpu, h.job, h.begin_s - zero, h.end_s - zero, k) for k, held in spans.items() for h in held]
        written += plots.gantt(bars, folder / f"{name}-{run.policy}", f"{name}, seed {workload.seed}: {run.policy}")
    jcts = {run.policy: plots.distribution(_jcts(run)) for run in runs_of_seed}
    used = {r.policy: plots.at_once((h.begin_s - zero, h.end_s - zero) for h in r.outcome.held) for r in runs_of_seed}
    written += plots.steps(jcts, folder / f"{name}-jct", "job completion time, seconds", "share of jobs")
    return written + plots.steps(
        used, folder / f"{name}-gpus", "seconds since the first job was submitted", "GPUs in use"
    )


def _all_runs(name: str, seeds: int, policies: Sequence[str], data: Path | None) -> tuple[list[Run], list[Row]]:
    """The runs of the first seed, to draw, and the rows of all."""
    try:
        each = len(set(policies)) or len(build(name, 0, data).contenders)
        length = each * (seeds if is_drawn(name) else 1)
        first: list[Run] = []
        rows: list[Row] = []
        with click.progressbar(
            runs(name, seeds, policies, data), length=length, label=f"Simulating {name}", file=sys.stderr
        ) as bar:
            for run in bar:
                rows.append(run.row)
                if run.workload.seed == 0:
                    first.append(run)
        return first, rows
    except NoWorkload as refused:
        raise Rejected(str(refused)) from refused


def _jcts(run: Run) -> list[float]:
    return [j.finished_s - j.given.arrival_s for j in run.outcome.jobs if j.finished_s is not None]


def _paper_table(result: dict[str, Any]) -> str:
    head = ("POLICY", "MEASURE", "PAPER", "OURS", "DIFFERENCE", "CLAIM", "HOLDS")
    verdict = {True: "yes", False: "no", None: "-"}
    rows = [
        (
            row["policy"],
            row["measure"] + (f" to {row['against']}" if row["against"] else ""),
            f"{row['paper']:.5g}",
            f"{row['ours']:.5g}",
            f"{row['difference']:+.3g}" + ("" if row["relative"] is None else f" ({row['relative']:+.1%})"),
            row["claim"],
            verdict[row["holds"]],
        )
        for row in result["paper"]
    ]
    sources = dict.fromkeys(row["source"] for row in result["paper"])
    return f"{as_table(result)}\n\nPublished by: {'; '.join(sources)}\n\n{table(head, rows)}"


def _cell(value: Any, form: str) -> str:
    return NONE if value is None else form.format(value)


def _seeds(result: dict[str, Any]) -> str:
    seeds = result["seeds"]
    return f"mean of seeds 0 to {seeds[-1]}" if len(seeds) > 1 else "one run"


def _inputs(result: dict[str, Any]) -> str:
    lines = [f"{kind}: {'; '.join(result[kind])}" for kind in ("emulated", "fitted", "invented") if result[kind]]
    return "\n".join([*lines, *(f"{name}: {says}" for name, says in result["notes"].items())])
