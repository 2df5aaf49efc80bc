"""Runs `reshape paper`: one published experiment beside its paper, or all of them with a table in docs/papers.md.

Called by `simulate_verbs.py`. Results go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from coordinator.errors import Rejected
from reshape.output.tables import NONE, table
from reshape.output.terminal import to_json
from reshape_papers import published_figures, report
from reshape_papers.commands import paper_plots
from reshape_papers.commands.simulate import JobSource, all_runs, as_table, make_room
from reshape_papers.figures.results import ExperimentResults
from reshape_papers.papers import causes, page, results, verdicts
from reshape_papers.run import SimulationRun, compare
from reshape_papers.workloads import saving_times
from simulator.scenario import NoWorkload

ALL = "all"


def paper(*, name: str, seeds: int | None, output: str, data: Path | None, plot: Path | None) -> int:
    """Print an experiment beside its paper, or all; return 0 if all claims hold. Raises `Rejected` as `simulate`."""
    if name == ALL:
        if plot is not None:
            raise Rejected("--plot draws the figures of one experiment; name it in place of all.")
        return _all(seeds, output)
    if plot is not None:
        paper_plots.check(name)
        make_room(plot)
    if name == saving_times.EXPERIMENT:
        return _saving(output, plot)
    first, found = _found(name, seeds or results.SEEDS, data)
    _draw(name, ExperimentResults(first, found), plot)
    click.echo(to_json(found) if output == "json" else _paper_table(found))
    return _missed(found["paper"])


def _draw(name: str, found: Any, plot: Path | None) -> None:
    for path in paper_plots.draw(name, found, plot) if plot is not None else ():
        click.echo(f"{path} is written.", err=True)


def _saving(output: str, plot: Path | None) -> int:
    """Print what was recorded of stopping trainings and starting them again."""
    rows = saving_times.rows()
    _draw(saving_times.EXPERIMENT, rows, plot)
    click.echo(to_json(rows) if output == "json" else table(saving_times.HEAD, map(saving_times.cells, rows)))
    return 0


def _all(seeds: int | None, output: str) -> int:
    """Run every experiment of the papers, in a clone write its figures down, and print the comparison."""
    found = {name: _found(name, seeds or results.seeds_of(name), None)[1] for name in results.EXPERIMENTS}
    figures = {name: results.kept(summary) for name, summary in found.items()}
    figures |= {cause.name: results.kept(_changed(cause, seeds or results.SEEDS)) for cause in causes.CAUSES}
    click.echo(to_json(figures) if output == "json" else "\n\n".join(map(_comparison, found.values())))
    for path in page.write(figures):
        click.echo(f"{path} is written.", err=True)
    return max([_missed(summary["paper"]) for summary in found.values()])


def _found(name: str, seeds: int, data: Path | None) -> tuple[list[SimulationRun], dict[str, Any]]:
    """Return the runs of the first seed, and the summary of all with the comparison under "paper"."""
    bounded = any(figure.measure in report.TO_BOUNDS for figure in published_figures.FIGURES.get(name, ()))
    try:
        policies = results.policies_of(name, data)
    except NoWorkload as refused:
        raise Rejected(str(refused)) from refused
    first, rows = all_runs(JobSource(name), seeds, policies, data, bounded=bounded)
    result = report.summary(first[0].workload, rows)
    return first, {**result, "paper": verdicts.compare(result)}


def _changed(cause: causes.Cause, seeds: int) -> dict[str, Any]:
    """Run a changed experiment, only the policies of its figures and what they are compared with."""
    shown = {name for figure in cause.figures for name in (figure.policy, figure.against) if name}
    wanted = [name for name in results.policies_of(cause.experiment) if name in shown]
    rows = [run.row for seed in range(seeds) for run in compare(cause.draw(seed), wanted, bounded=False)]
    result = report.summary(cause.draw(0), rows)
    return {**result, "paper": verdicts.compare(result, cause.figures)}


def _missed(rows: Sequence[Mapping[str, Any]]) -> int:
    missed = [row for row in rows if row["holds"] is False and row["claim"] != "trend"]
    for row in missed:
        click.echo(f"{row['policy']} misses {row['measure']}: {row['ours']:.4g}, claimed {row['claim']}.", err=True)
    return 1 if missed else 0


def _paper_table(result: dict[str, Any]) -> str:
    return f"{as_table(result)}\n\n{_comparison(result)}"


def _comparison(result: dict[str, Any]) -> str:
    head = ("POLICY", "MEASURE", "PAPER", "OURS", "SPREAD", "DIFFERENCE", "CLAIM", "VERDICT")
    rows = [
        (
            row["policy"],
            row["measure"] + (f" to {row['against']}" if row["against"] else ""),
            NONE if row["paper"] is None else f"{row['paper']:.5g}",
            f"{row['ours']:.5g}",
            NONE if row["spread"] is None else f"± {row['spread']:.2g}",
            _difference(row),
            row["claim"],
            row["verdict"] or NONE,
        )
        for row in result["paper"]
    ]
    sources = dict.fromkeys(row["source"] for row in result["paper"])
    return f"{result['workload']}, published by: {'; '.join(sources)}\n\n{table(head, rows)}"


def _difference(row: dict[str, Any]) -> str:
    if row["difference"] is None:
        return NONE
    return f"{row['difference']:+.3g}" + ("" if row["relative"] is None else f" ({row['relative']:+.1%})")
